"""Log lines, metrics and health of a running job, for its operator.

By default all of it is public: closed steps, releases, the budget and how far the job is behind its
public calendar. Counts of rows and sizes of the state depend on people's rows: they are shown where
the operator asks for them, and never published.

Proof that lines and figures are the same for neighbours: they are functions of the query, of the
ledger, of the public clock and of the sequence of closed steps, which includes every step of the
schedule, with or without rows (`runtime.schedule`). A commit that leaves a step or a group of
releases open changes nothing here, as its place depends on rows. When a line or a figure appears
depends on how long the work took, which everybody who watches a job sees (docs/privacy.md).
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from streamveil.accounts.deployment import record
from streamveil.accounts.ledger import Ledger
from streamveil.disk import crash_only
from streamveil.errors import (
    NoiseWarning,
    PlanError,
    SourceError,
    StoreError,
    StreamveilError,
    requires_extra,
    visible_lines,
)
from streamveil.plan import Clock, Plan
from streamveil.runtime.progress import Progress
from streamveil.runtime.store import LEDGER

OURS = logging.getLogger("streamveil")
LOG = logging.getLogger("streamveil.job")
LATE = 2  # a job so many steps behind its calendar is not healthy
TYPE = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Figures:
    """The public figures of a job at one time."""

    job: str
    step: int  # the last closed one, over all runs
    steps: int | None  # of the job, where it ends
    behind: int  # steps that ended by the public clock, and are not closed
    behind_seconds: float  # since the first of them ended
    releases: int  # of this run
    epsilon: float | None  # charged to the ledger of the state
    epsilon_limit: float | None

    @property
    def healthy(self) -> bool:
        """Whether the job is less than `LATE` steps behind."""
        return self.behind < LATE


class Watch:
    """Listens to a job, logs its steps and keeps its figures. `now`: seconds since 1970.

    >>> import streamveil as sv
    >>> plan = sv.memory({"u": [1]}).protect("u").agg(n=sv.count()).bound(max_rows=1).release(
    ...     budget=sv.Budget(epsilon=1, delta=1e-9)).plan
    >>> watch = Watch(plan, Path("no state"), now=lambda: 0.0)
    >>> watch.hear(Progress(1, 1, 900, 1, 0.5, 0, 0))
    >>> watch.figures().step, watch.figures().releases
    (1, 1)
    """

    def __init__(self, plan: Plan, state: Path, *, now: Callable[[], float]) -> None:
        self.plan, self.state, self.now = plan, state, now
        self.last: Progress | None = None
        self.closed: int | None = None  # steps; None while the state is being opened
        self._releases = 0
        self._ledger: tuple[int, tuple[float | None, float | None]] = 0, (None, None)

    def begin(self, closed: int) -> None:
        """Takes how many steps earlier runs have closed."""
        self.closed = closed

    def hear(self, seen: Progress) -> None:
        """Takes a report of the job, and logs the steps that it closed."""
        self.last = seen
        if not seen.unpublished:
            self.closed, self._releases = seen.step, seen.releases
            told = {"job": self.plan.name, "step": seen.step, "releases": seen.releases}
            LOG.info("step %d, %d releases of this run", seen.step, seen.releases, extra=told)

    def figures(self) -> Figures:
        """The public figures as they are now."""
        clock, now, closed = self.plan.clock, self.now(), self.closed
        spent, limit = self._charged()
        late = 0 if closed is None else behind(clock, closed, now)
        due = clock.due_us((closed or 0) + 1) / 1e6 if late else now
        return Figures(
            job=self.plan.name, step=closed or 0, steps=clock.steps,
            behind=late, behind_seconds=now - due, releases=self._releases,
            epsilon=spent, epsilon_limit=limit,
        )  # fmt: skip

    def _charged(self) -> tuple[float | None, float | None]:
        """See `charged`; read again when the ledger has changed."""
        path = self.state / LEDGER
        now = path.stat().st_mtime_ns if path.is_file() else 0
        if now != self._ledger[0]:
            self._ledger = now, charged(path)
        return self._ledger[1]

    def exact(self) -> dict[str, int]:
        """Counts that depend on people's rows: for the operator alone."""
        if self.last is None:
            return {}
        return {"rows": self.last.rows, **self.last.counters, **self.last.rejected}


def behind(clock: Clock, step: int, now: float) -> int:
    """How many steps ended by the public clock and are not closed; 0 where there is no such clock.

    >>> hours = Clock(kind="wall", every=3_600_000_000, start_us=0, steps=24)
    >>> behind(hours, 2, 5.5 * 3600), behind(hours, 24, 1e9)
    (3, 0)
    """
    if clock.kind != "wall":
        return 0
    return max(0, clock.due(now) - step)


def charged(path: Path) -> tuple[float | None, float | None]:
    """Epsilon charged to a ledger and its limit, each where there is one.

    A job may be writing the first line of its ledger at this moment.
    """
    if not path.is_file():
        return None, None
    with crash_only("read", path), path.open("rb") as lines:
        if not lines.readline().endswith(b"\n"):
            return None, None
    with Ledger.load(path) as ledger:
        told = record(ledger)
    limit = ledger.limit.epsilon
    return told["epsilon"], None if limit is None else float(limit)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event and public facts."""

    def format(self, entry: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        told: dict[str, Any] = {
            "time": self.formatTime(entry, "%Y-%m-%dT%H:%M:%S%z"),
            "level": entry.levelname.lower(),
            "event": visible_lines(entry.getMessage()),
        }
        known = ("job", "step", "releases")
        told |= {name: getattr(entry, name) for name in known if hasattr(entry, name)}
        return json.dumps(told)


@contextmanager
def logged(
    form: str | None,
    job_name: str,
    begins: str = "starting",
    ends: str = "nothing is left to do",
    *,
    several: bool = False,
) -> Iterator[None]:
    """Log lines on stderr while a job runs; `form`: 'text', 'json', or None for none.

    `begins` is the first line, `ends` the last. `several`: each line of text names its job.
    """
    if form is None:
        yield
        return
    if form not in ("text", "json"):
        raise PlanError(f"--log is text or json, not '{form[:20]}'.\n  to fix  --log json")
    handler, level = logging.StreamHandler(), LOG.level
    name = " %(job)s:" if several else ""
    plain = logging.Formatter(f"%(asctime)s %(levelname)s{name} %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    handler.addFilter(partial(name_job, job_name))
    OURS.addHandler(handler)  # with what sources warn of
    LOG.setLevel(logging.INFO)
    LOG.info("%s", begins)
    try:
        with warnings.catch_warnings():  # each job of a process tells all that it warns of
            warnings.simplefilter("always", NoiseWarning, append=True)
            warnings.showwarning = log_warning
            yield
        LOG.info("%s", ends)
    except SystemExit as left:  # a signal: it says what is committed
        LOG.info("%s", left)
        vars(left)["is_logged"] = True
        raise
    except StreamveilError as error:
        LOG.error("stopped: %s", error)
        vars(error)["is_logged"] = True
        raise
    except BaseException as error:  # a message that is not ours may show a row
        LOG.error("stopped by %s", type(error).__name__)
        raise
    finally:
        OURS.removeHandler(handler)
        LOG.setLevel(level)


def name_job(name: str, entry: logging.LogRecord) -> bool:
    """Adds the job's name to a line without one."""
    vars(entry).setdefault("job", name)
    return True


def log_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Logs a warning of ours, which is public; warnings of other packages are not."""
    if issubclass(category, NoiseWarning):
        LOG.warning("%s", message)


def exposition(*watches: Watch, exact: bool = False) -> bytes:
    """The metrics of all jobs as Prometheus reads them. `exact`: also what depends on rows.

    Raises MissingExtraError where the package prometheus_client is not installed.
    """
    with requires_extra("metrics", "metrics"):
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    registry, all_told = CollectorRegistry(), [watch.figures() for watch in watches]
    for name, (text, field) in METRICS.items():
        values = {told.job: getattr(told, field) for told in all_told}
        if any(value is not None for value in values.values()):
            gauge = Gauge(f"streamveil_{name}", text, ["job"], registry=registry)
            for job, value in values.items():
                if value is not None:
                    gauge.labels(job).set(value)
    if exact:
        text = "Private: exact counts, which depend on people's rows"
        gauge = Gauge("streamveil_exact", text, ["job", "what"], registry=registry)
        for watch in watches:
            for what, count in watch.exact().items():
                gauge.labels(watch.plan.name, what).set(count)
    page: bytes = generate_latest(registry)
    return page


METRICS = {  # name -> what it is, and the figure
    "step": ("Steps closed, over all runs", "step"),
    "steps": ("Steps of the job", "steps"),
    "behind_steps": ("Steps due by the public clock and not closed", "behind"),
    "behind_seconds": ("Since the first of these was due", "behind_seconds"),
    "releases": ("Releases of this run", "releases"),
    "epsilon_charged": ("Epsilon charged to the ledger", "epsilon"),
    "epsilon_limit": ("Limit of the ledger", "epsilon_limit"),
}


class Quiet(WSGIRequestHandler):
    """A handler that logs no request."""

    timeout = 10  # seconds for a client to say what it wants

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Served(ThreadingMixIn, WSGIServer):
    """A server in which no client waits for another, and the job's end waits for none."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Says nothing of a client that went away, or never said what it wants."""


@contextmanager
def served(address: str, *watches: Watch, exact: bool = False) -> Iterator[int]:
    """Serves `/metrics` and `/health` of jobs at HOST:PORT while they run; yields the port.

    Without a host, to this machine alone. Raises SourceError where the address cannot be used.
    """
    exposition(*watches)  # a missing package is said now
    host, _, port = address.rpartition(":")

    def told(path: object) -> tuple[str, bytes]:
        if path == "/metrics":
            return "200 OK", exposition(*watches, exact=exact)
        if path == "/health":
            late = max((watch.figures() for watch in watches), key=lambda one: one.behind)
            status = "200 OK" if late.healthy else "503 Service Unavailable"
            return status, f"{'ok' if late.healthy else f'{late.behind} steps behind'}\n".encode()
        return "404 Not Found", b"there are /metrics and /health\n"

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        try:
            status, body = told(request.get("PATH_INFO"))
        except StoreError as error:  # a ledger that is damaged, or not to be read
            status, body = "500 Internal Server Error", f"{error}\n".encode()
        start(status, [("Content-Type", TYPE), ("Content-Length", str(len(body)))])
        return [body]

    try:
        server = make_server(host or "127.0.0.1", int(port), answer, Served, Quiet)
    except (OSError, ValueError, OverflowError):
        raise SourceError(
            f"metrics cannot be served at '{address}'.\n"
            "  to fix  give a free PORT of this machine, or HOST:PORT, such as 127.0.0.1:9464"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
