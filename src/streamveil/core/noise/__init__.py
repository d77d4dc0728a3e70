"""Exact noise at addresses."""
