"""Counters that the engine chooses among, each with its sensitivity."""
