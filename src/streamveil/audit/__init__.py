"""Empirical privacy auditing of mechanisms and of whole jobs."""

from streamveil.audit.attack import Audit, distinguish
from streamveil.audit.bounds import EventCounts, clopper_pearson

__all__ = ["Audit", "EventCounts", "clopper_pearson", "distinguish"]
