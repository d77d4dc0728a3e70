"""The stages of a group-by: arrive, bound, total, open, release."""
