"""From a plan to the operator that runs it; designs proposed, before any data."""
