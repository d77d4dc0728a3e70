"""A web page of a job's releases and spending: public values only, in one file or served."""

from streamveil.dashboard.page import write
from streamveil.dashboard.serve import server_of

__all__ = ["server_of", "write"]
