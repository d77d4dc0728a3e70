"""Linear queries over tables that grow and tables that change."""

from streamveil.mechanisms.dynamic.baselines import Rerun, SnapshotDelta, TwoStream
from streamveil.mechanisms.dynamic.buckets import Published, Repaired
from streamveil.mechanisms.dynamic.choose import Choice, Workload, choose
from streamveil.mechanisms.dynamic.continual_mwem import ContinualMwem
from streamveil.mechanisms.dynamic.insertion_only import InsertionOnly
from streamveil.mechanisms.dynamic.interval_tree import FullyDynamic
from streamveil.mechanisms.dynamic.live import LiveTable
from streamveil.mechanisms.dynamic.protocol import Bag, Changes, DynamicMechanism
from streamveil.mechanisms.dynamic.records import Records
from streamveil.mechanisms.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.mechanisms.dynamic.trees import Hybrid, Tree

__all__ = [
    "Bag",
    "Changes",
    "Choice",
    "ContinualMwem",
    "DynamicMechanism",
    "FullyDynamic",
    "Hybrid",
    "InsertionOnly",
    "LiveTable",
    "Published",
    "Records",
    "Repaired",
    "Rerun",
    "SignedCounter",
    "SnapshotDelta",
    "Tree",
    "TreeCounter",
    "TwoStream",
    "Workload",
    "choose",
]
