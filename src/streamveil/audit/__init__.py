"""Evidence against claims of privacy, searched for by arithmetic and by statistics."""
