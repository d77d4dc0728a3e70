"""Plans: what a query says, checked."""
