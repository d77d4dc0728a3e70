"""The Spark engine as a value: `query.run(state=..., engine=streamveil.spark(session))`.

Nothing of Spark is imported before a query is started.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streamveil.accounts.ledger import Where
from streamveil.errors import PlanError, at_least, require_text, require_with

if TYPE_CHECKING:
    from streamveil.core.noise import Noise
    from streamveil.plan import Plan
    from streamveil.runtime.progress import Listener
    from streamveil.runtime.spark import Publish, SparkJob

MASTERS = r"local(\[.+\])?|yarn|(spark|k8s)://.+"


@dataclass(frozen=True)
class SparkEngine:
    """Where and how a query is spread."""

    session: Any = None  # None: one is started on `master`
    master: str = "local[*]"
    shards: int | None = None
    storage: str | None = None
    tasks: int | None = None
    publish: Publish | None = None

    def __post_init__(self) -> None:
        for name, value in (("shards", self.shards), ("tasks", self.tasks)):
            at_least(1, **{name: 1 if value is None else value})
        require_text(master=self.master)
        if self.session is not None:
            require_with("session", self.session, "version", "a SparkSession")
        if self.publish is not None:
            require_with("publish", self.publish, "__call__", "a function of a frame and a release")
        if self.session is None and not re.fullmatch(MASTERS, self.master):
            raise PlanError(
                f"Spark knows no master '{self.master}'.\n"
                "  to fix  local[*], yarn, or an address that begins with spark:// or k8s://"
            )

    def start(  # noqa: PLR0913  (the options of `Query.run`)
        self, plan: Plan, *, state: str | Path, secret: str | None = None,
        noise: Noise | None = None, insecure: bool = False, once: bool = False,
        progress: Listener | None = None, ledger: Where | None = None,
        rejects: str | Path | None = None, charge: bool = True,
    ) -> SparkJob:  # fmt: skip
        """Creates or resumes the job of a plan; iterating over it yields its releases.

        Without `charge` a new one is charged when it begins to run.
        """
        if rejects is not None:
            raise PlanError(
                "rows that cannot be used are kept by the embedded engine only.\n"
                "  to fix  leave rejects out (they are counted by reason all the same), or use the"
                " embedded engine"
            )
        from streamveil.connectors import open_source
        from streamveil.connectors.files import FilesSource
        from streamveil.engines.spark.session import require_pyspark, require_session, session

        require_pyspark()  # what follows imports what other versions do not have
        if self.session is not None:
            require_session(self.session)
        from streamveil.engines.spark.splits import require_parquet
        from streamveil.runtime.secret import Randomness
        from streamveil.runtime.spark import SparkJob
        from streamveil.runtime.spark_state import SparkLayout

        if plan.source.kind == "files":  # sooner, and in fewer words, than Spark would tell
            require_parquet(cast(FilesSource, open_source("files", plan.source.options)))
        layout = SparkLayout(shards=self.shards, storage=self.storage, tasks=self.tasks)
        start = partial(session, self.master)  # after what can be refused without Java
        return SparkJob(
            plan, state=state, session=self.session or start, layout=layout,
            keys=Randomness(secret, noise, insecure), once=once, progress=progress,
            ledger=ledger, publish=self.publish, charge=charge,
        )  # fmt: skip


def spark(
    session: Any = None, *, master: str = "local[*]", shards: int | None = None,
    storage: str | None = None, tasks: int | None = None, publish: Publish | None = None,
) -> SparkEngine:  # fmt: skip
    """Runs a query on Spark: on your session, or on one started on `master`.

    Args:
        session: a SparkSession; one is started if left out.
        master: where to start it, such as "local[4]".
        shards: parts of the state, 8 unless given: about as many as the cores you may ever want.
            Fixed when the state is created.
        storage: a URI for shard state that all executors reach; fixed likewise.
        tasks: how many run each stage; two for each core unless given. May change at every start.
        publish: `publish(frame, release)` writes a release, given as Spark's DataFrame too, to a
            database, say. It runs on the driver, after the query's sink, and comes again with the
            same content after a crash: it must key what it writes by (job, `release.window`,
            `release.trigger`).

    Raises:
        PlanError: `shards` or `tasks` is below 1, or an argument is of another kind.
        MissingExtraError: when the query runs, PySpark is not installed.

    >>> import streamveil as sv
    >>> engine = sv.spark(master="local[4]", shards=32)  # query.run(state="q.veil", engine=engine)
    """
    return SparkEngine(session, master, shards, storage, tasks, publish)
