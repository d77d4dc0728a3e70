"""Starts Spark's Python workers as forks of a process that has imported everything they need.

A fresh worker would spend seconds on imports before its first task; a fork spends milliseconds.
Spark collects garbage after every task. Imported objects are excluded from that; with them it would
take a tenth of a second of CPU each time.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401  (imported for the workers)

import streamveil.engines.spark.source
import streamveil.engines.spark.tasks  # noqa: F401  (imported for the workers)

if __name__ == "__main__":
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()
    manager()
