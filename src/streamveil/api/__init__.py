"""The Python library: queries are built, explained, run and asked."""
