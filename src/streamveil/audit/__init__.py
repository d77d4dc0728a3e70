"""Empirical privacy auditing of mechanisms and of whole jobs."""

from streamveil.audit.attack import Audit, EventCounts, clopper_pearson, distinguish

__all__ = ["Audit", "EventCounts", "clopper_pearson", "distinguish"]
