"""A web page of what a job released and spent: public values only, one file, no server."""

from streamveil.dashboard.page import write

__all__ = ["write"]
