"""Linear queries over tables that grow and tables that change."""

from streamveil.mechanisms.dynamic.baselines import Rerun, SnapshotDelta, TwoStream
from streamveil.mechanisms.dynamic.buckets import Published, Repaired
from streamveil.mechanisms.dynamic.choose import MechanismChoice, Workload, choose
from streamveil.mechanisms.dynamic.classifier import GrowingClassifier
from streamveil.mechanisms.dynamic.continual_mwem import ContinualMwem
from streamveil.mechanisms.dynamic.erm import (
    NoisyGradientDescent,
    ObjectivePerturbation,
    OutputPerturbation,
    Trainer,
)
from streamveil.mechanisms.dynamic.growing import growing
from streamveil.mechanisms.dynamic.insertion_only import InsertionOnly
from streamveil.mechanisms.dynamic.interval_tree import FullyDynamic
from streamveil.mechanisms.dynamic.live import LiveTable
from streamveil.mechanisms.dynamic.live_pmw import LivePmw
from streamveil.mechanisms.dynamic.pmwg import Pmwg
from streamveil.mechanisms.dynamic.protocol import Bag, Changes, DynamicMechanism
from streamveil.mechanisms.dynamic.records import Records
from streamveil.mechanisms.dynamic.schedulers import (
    BBImprover,
    BBScheduler,
    DisjointDoubling,
    Reruns,
)
from streamveil.mechanisms.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.mechanisms.dynamic.trees import Hybrid, Tree
from streamveil.mechanisms.dynamic.triggered import TriggeredSnapshots

__all__ = [
    "BBImprover",
    "BBScheduler",
    "Bag",
    "Changes",
    "ContinualMwem",
    "DisjointDoubling",
    "DynamicMechanism",
    "FullyDynamic",
    "GrowingClassifier",
    "Hybrid",
    "InsertionOnly",
    "LivePmw",
    "LiveTable",
    "MechanismChoice",
    "NoisyGradientDescent",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "Pmwg",
    "Published",
    "Records",
    "Repaired",
    "Rerun",
    "Reruns",
    "SignedCounter",
    "SnapshotDelta",
    "Trainer",
    "Tree",
    "TreeCounter",
    "TriggeredSnapshots",
    "TwoStream",
    "Workload",
    "choose",
    "growing",
]
