"""Answers across releases: differences, recent sums, ratios, top groups, with intervals."""
