"""Neighbours, losses, their composition and conversion."""
