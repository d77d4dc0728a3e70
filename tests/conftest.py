"""One setting for every test: the same examples and secrets in every run, fresh ones on request.

Designs of queries that one test searched are found by the others, in a folder of this run's own.
Where a test replaces a part of the code that searches by another, it searches itself and keeps
nothing.

`HYPOTHESIS_PROFILE=nightly make all` searches every design anew, draws new examples, many more of
them, and new secrets; a failure it finds is pinned beside its test as an @example. So no run fails
for a change that is not in the code. Secrets that a test's own processes draw (the command line,
killed jobs) are new ones.
"""

import atexit
import gc
import hashlib
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from streamveil import expressions, kept
from streamveil.core.noise import SECRET_BYTES, KeyedNoise

COMPILING = [HealthCheck.too_slow, HealthCheck.data_too_large]  # a kernel compiles on first use
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    suppress_health_check=COMPILING,
)
settings.register_profile(
    "nightly", max_examples=4000, deadline=None, suppress_health_check=COMPILING, print_blob=True
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(PROFILE)
os.environ[kept.FOLDER] = "off"  # also while the controller collects tests


ELSEWHERE = ("streamveil.", "tests.")  # code of ours, of which these packages search designs:
SEARCHING = tuple(f"streamveil.{Path(room).stem}" for room in kept.ROOMS if "/" not in room)
SHARING = {  # tests whose name begins so -> one group, for one worker
    "tests/engines/spark/test_job.py::test_kill": "kafka",  # they start sessions of their own
    "tests/engines/spark/": "spark",  # a session
    "tests/connectors/test_kafka": "kafka",  # a broker
}


def is_searching(owner):
    """Whether parts of `owner` may decide designs: `kept` has a digest of them, or nobody has."""
    if not isinstance(owner, str):
        kind = owner if isinstance(owner, type | ModuleType) else type(owner)
        owner = kind.__name__ if isinstance(kind, ModuleType) else kind.__module__
    return owner.startswith((*SEARCHING, "streamveil.kept")) or not owner.startswith(ELSEWHERE)


def pytest_configure(config):
    """The folder of this run, which the controller makes and its workers are told of.

    No garbage is collected until tests run. A worker that is done ends at once: clients that a
    killed job left behind would wait for servers that are gone.
    """
    gc.disable()
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
    told = getattr(config, "workerinput", None)
    config.designs = told["designs"] if told else tempfile.mkdtemp(prefix="streamveil-designs-")


def pytest_collection_finish():
    """What was loaded stays: no collection looks at it again. Others are looked at more rarely."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tells a worker of the folder."""
    node.workerinput["designs"] = node.config.designs


def pytest_unconfigure(config):
    """The controller made the folder and removes it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.designs, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """While a test runs, secrets follow from its name and their number alone."""
    if PROFILE == "nightly":
        return (yield)
    numbers = count()
    plain, undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo
    forget = expressions._compiled.cache_clear  # of code that was replaced since, or is again

    def fresh(cls):
        name = f"{item.nodeid} {next(numbers)}".encode()
        return cls(hashlib.blake2b(name, digest_size=SECRET_BYTES).digest())

    def replaced(self, owner, *args, **kwargs):
        if is_searching(owner):
            os.environ[kept.FOLDER] = "off"
        plain(self, owner, *args, **kwargs)
        forget()

    def undone(self):
        undo(self)
        forget()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedNoise, "fresh", classmethod(fresh))
        patch.setenv(kept.FOLDER, item.config.designs)
        patch.setattr(pytest.MonkeyPatch, "undo", undone)
        patch.setattr(pytest.MonkeyPatch, "setattr", replaced)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With workers, a file's tests go to one of them; those that share a session or broker do."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):
        def _split_scope(self, nodeid):
            found = (group for begin, group in SHARING.items() if nodeid.startswith(begin))
            return next(found, None) or super()._split_scope(nodeid)

    return Sharing(config, log) if config.getoption("dist") == "loadfile" else None
