"""Ledgers: what jobs have spent, and what they may."""
