"""Linear queries over tables that grow and tables that change."""

from streamveil.dynamic.baselines import Rerun, TwoStream
from streamveil.dynamic.buckets import Repaired
from streamveil.dynamic.choose import MechanismChoice, Workload, choose
from streamveil.dynamic.continual_mwem import ContinualMwem
from streamveil.dynamic.erm import (
    GrowingClassifier,
    NoisyGradientDescent,
    OutputPerturbation,
    Trainer,
)
from streamveil.dynamic.insertion_only import InsertionOnly
from streamveil.dynamic.interval_tree import FullyDynamic
from streamveil.dynamic.live import LiveTable
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.dynamic.pmwg import Pmwg
from streamveil.dynamic.protocol import Bag, Changes, DynamicMechanism
from streamveil.dynamic.records import Records
from streamveil.dynamic.schedulers import BBImprover, BBScheduler, DisjointDoubling, Reruns, growing
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.dynamic.trees import Hybrid, Tree

__all__ = [
    "BBImprover", "BBScheduler", "Bag", "Changes", "ContinualMwem", "DisjointDoubling",
    "DynamicMechanism", "FullyDynamic", "GrowingClassifier", "Hybrid", "InsertionOnly", "LivePmw",
    "LiveTable", "MechanismChoice", "NoisyGradientDescent", "OutputPerturbation", "Pmwg", "Records",
    "Repaired", "Rerun", "Reruns", "SignedCounter", "Trainer", "Tree",
    "TreeCounter", "TwoStream", "Workload", "choose", "growing",
]  # fmt: skip
