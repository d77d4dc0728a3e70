"""streamveil resend: gives the tables of a database the releases that they have lost."""

from __future__ import annotations

from pathlib import Path

from streamveil.batch import Release
from streamveil.connectors import open_sink
from streamveil.connectors.databases import DatabaseSink
from streamveil.disk import Lock
from streamveil.errors import PlanError
from streamveil.plan import Plan
from streamveil.results.post import after_post
from streamveil.runtime.changed_query import require_kept
from streamveil.runtime.published import of_state
from streamveil.runtime.store import require_header


def resend(plan: Plan, state: str | Path) -> int:
    """Writes all releases that a state keeps into the databases of a query; says how many.

    Those that are there stay as they are (see the proof in `connectors.databases`). No job of the
    state may run meanwhile.
    """
    home = Path(state)
    sinks = databases_of(plan)
    if not sinks:
        raise PlanError(
            "this query writes to no database, and `resend` fills tables of databases only.\n"
            "  to fix  read what is missing with `streamveil read`"
        )
    require_header(home)
    lock = Lock(home)
    try:
        known = require_kept(plan, home).plan
        releases = after_post(of_state(home), known.post)
        for moment in releases.moments:
            release = Release(releases.noisy(moment), *moment, 0)
            for sink in sinks:
                sink.write(known.name, release)
        return len(releases.moments)
    finally:
        lock.close()


def databases_of(plan: Plan) -> list[DatabaseSink]:
    """The sinks of a query that are databases; every other one is closed again."""
    found = []
    for one in plan.sinks:
        sink = open_sink(one.kind, one.options)
        if isinstance(sink, DatabaseSink):
            found.append(sink)
        else:
            sink.close()
    return found
