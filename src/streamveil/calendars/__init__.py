"""Clocks of time zones, and the division of time into months, weeks, days: public arithmetic."""
