"""Evidence: what would refute a claim, found by arithmetic and by statistics."""
