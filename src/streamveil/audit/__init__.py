"""Empirical privacy auditing of mechanisms and of whole jobs."""

from streamveil.audit.attack import Audit, distinguish
from streamveil.audit.bounds import Finding, clopper_pearson

__all__ = ["Audit", "Finding", "clopper_pearson", "distinguish"]
