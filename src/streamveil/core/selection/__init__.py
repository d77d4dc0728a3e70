"""Showing groups privately, with certificates."""
