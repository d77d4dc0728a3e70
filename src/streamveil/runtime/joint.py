"""Several private answers at once: a job for each, and one SELECT over their releases.

Each job has its own state inside the state directory, its own charge and its own noise. A ledger
that they share is charged for all of them at once. They close their steps side by side; as soon as
all have released at a window and trigger, the rows are joined. Only the jobs keep anything: the
same releases joined again give the same rows, so a killed run goes on by joining the releases in
the archives.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamveil.accounts.ledger import Ledger, Where
from streamveil.batch import Moment, Release
from streamveil.compiler import operator_of
from streamveil.connectors import open_sinks, try_connectors
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noisy import Noisy, post_process
from streamveil.disk import make_directory
from streamveil.errors import BudgetError, PlanError, StoreError
from streamveil.plan import Plan, SinkSpec, combined_plan
from streamveil.plan.joint import JointPlan
from streamveil.plan.look import in_units, with_look
from streamveil.results.post import after_post, processed_together, require_joint
from streamveil.results.releases import Releases, of_folder
from streamveil.runtime.changed_query import read_by
from streamveil.runtime.job import Job, Work, begin, require
from streamveil.runtime.progress import Listener, tell_all
from streamveil.runtime.published import of_state, opened, pick
from streamveil.runtime.run import prepared
from streamveil.runtime.schedule import open_rows
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import BEFORE_LOOK, discard, epoch_of, is_ready, is_state, states_in
from streamveil.runtime.watch import Watch

NO_LEDGER_ON_SPARK = (
    "on Spark each of several private answers is charged when its job begins, and a shared ledger"
    " could refuse the second when the first is paid.\n"
    "  to fix  leave the ledger out, or run on the embedded engine, which charges all at once"
)
KEPT = "kept-{}"  # folder of the releases of an answer whose engine keeps none
Held = dict[Moment, Callable[[], Release]]  # releases of one answer that were not joined yet


def guarantee_of(parts: tuple[Plan, ...]) -> Guarantee:
    """The guarantee of all answers together.

    Proof: neighbours differ in the rows of one unit, wherever these are; each answer loses at most
        its own loss on them, with its own noise, even if an analyst or the stream itself reacts to
        the releases of the others (`Loss.compose`, which is adaptive). All protect the same unit in
        the same periods (`JointPlan`), so that a promise per period composes period by period. The
        join of the releases is post-processing.
    """
    found = [operator_of(combined_plan(in_units(with_look(one)))).guarantee for one in parts]
    first, *others = found
    if not all(first.protects.covers(one.protects) for one in others):
        raise PlanError("the private answers do not protect the same privacy unit")
    loss = first.loss.compose(*(one.loss for one in others)) if others else first.loss
    return Guarantee(
        first.protects, loss, first.horizon, separate=all(one.separate for one in found)
    )


def run_joint(
    joint: JointPlan, *, state: str | Path, watches: Sequence[Watch] = (),
    spark: Any = None, **options: Any,
) -> Generator[Release, None, None]:  # fmt: skip
    """Creates or resumes the jobs of all answers and yields their joined releases.

    `state` holds one state directory for each answer, under its name, and the directory of
    `rejects` likewise; `options` are those of `run` (with a `SparkEngine`, of its `start`), and
    `watches` listen to one job each, in their order. A resumed run yields earlier releases once
    more, which sinks recognise. Yields nothing for a window and trigger at which one of the answers
    has not released yet.
    """
    home = Path(state)
    if is_state(home):
        raise StoreError(
            f"'{home.name}' is the state of one query, and a statement of several private answers"
            " keeps one of each.\n  to fix  give it a directory of its own"
        )
    require_joint(joint, tuple(open_rows(one.source).schema() for one in joint.parts))
    asked = [(one.kind, one.options) for one in joint.sinks]
    if not any(epoch_of(home / part.name) for part in joint.parts):
        try_connectors([], asked)
    progress = options.pop("progress", None)
    listeners = [
        [one.hear for one in watches[place : place + 1]] + [progress] * (progress is not None)
        for place, _ in enumerate(joint.parts)
    ]
    with ExitStack() as stack:
        begin_all = embedded_jobs if spark is None else partial(spark_jobs, spark)
        jobs, held = begin_all(stack, joint, home, listeners, **options)
        sink = open_sinks(asked)
        for watch, job in zip(watches, jobs, strict=False):
            watch.begin(job.closed_steps)
        told = set[Moment]()
        for _ in turns(jobs, held):
            for moment in sorted(set.intersection(*map(set, held)) - told):
                told.add(moment)
                made = put_together(joint, [some.pop(moment)() for some in held])
                if sink is not None:
                    sink.write(joint.name, made)
                yield made


def embedded_jobs(
    stack: ExitStack, joint: JointPlan, home: Path, listeners: list[list[Listener]], *,
    rejects: str | Path | None = None, ledger: Where | None = None, **options: Any,
) -> tuple[list[Any], list[Held]]:  # fmt: skip
    """The jobs of all answers, and the releases of each in earlier runs."""
    places = [home / part.name for part in joint.parts]
    require_room(joint, places, ledger)
    make_directory(home)
    both = list(zip(joint.parts, places, strict=True))
    held = [earlier(part, place) for part, place in both]
    new = [place for place in places if not place.exists()]
    prepare = [
        partial(
            prepared, part, state=place, ledger=ledger,
            rejects=rejects and Path(rejects) / part.name, **options,
        )
        for part, place in both
    ]  # fmt: skip
    works = [one(look=ledger is None) for one in prepare]
    for (work, _), place in zip(works, places, strict=True):
        require(work, place)
    epochs = [begin(place, *work)[0] for work, place in zip(works, places, strict=True)]
    if ledger is not None:
        charge_together(works, places, epochs, new, ledger)
        works = [
            one() if work.calibration == BEFORE_LOOK else (work, keys)
            for one, (work, keys) in zip(prepare, works, strict=True)
        ]
    jobs = [
        stack.enter_context(Job(place, *work, progress=partial(tell_all, heard)))
        for work, place, heard in zip(works, places, listeners, strict=True)
    ]
    return jobs, held


def spark_jobs(
    spark: Any, stack: ExitStack, joint: JointPlan, home: Path, listeners: list[list[Listener]], *,
    ledger: Where | None = None, **options: Any,
) -> tuple[list[Any], list[Held]]:  # fmt: skip
    """The same on Spark, which keeps no releases: each job has a sink of files beside its state.

    A job writes a release there before it marks its step, and the same again if it was killed in
    between, so that all of its releases can be joined at the next start.
    """
    if ledger is not None:
        raise PlanError(NO_LEDGER_ON_SPARK)
    for part in joint.parts:
        if kept_at(home / part.name).name in {one.name for one in joint.parts}:
            raise PlanError(
                f"the folder '{KEPT.format(part.name)}' is that of two things: the state of one"
                " answer, and the releases of another.\n  to fix  give one of them another name"
            )
    make_directory(home)
    held = [earlier(part, home / part.name) for part in joint.parts]
    jobs = []
    for part, heard in zip(joint.parts, listeners, strict=True):
        path = str(kept_at(home / part.name).absolute())
        sink = SinkSpec(name=part.name, kind="files", options={"path": path})
        made = spark.start(
            replace(part, sinks=(sink,)), state=home / part.name,
            progress=partial(tell_all, heard), charge=False, **options,
        )  # fmt: skip
        jobs.append(stack.enter_context(made))
    for job in jobs:  # after everything that may refuse another job
        job.charge()
    return jobs, held


def kept_at(state: Path) -> Path:
    """Where the releases of a job on Spark are, beside its state."""
    return state.with_name(KEPT.format(state.name))


def require_room(joint: JointPlan, places: list[Path], ledger: Any) -> None:
    """Refuses, before any answer is charged, new answers that together exceed the ledger."""
    fresh = tuple(
        part for part, place in zip(joint.parts, places, strict=True) if epoch_of(place) is None
    )
    if ledger is not None and fresh:
        with Ledger.load(ledger) as shared:
            shared.require(joint.name, guarantee_of(fresh))


def charge_together(
    works: list[tuple[Work, Randomness]], places: list[Path], epochs: list[str],
    new: list[Path], ledger: Where,
) -> None:  # fmt: skip
    """Charges a shared ledger for all answers at once, before any of them looks at its rows.

    Proof: `Ledger.charge_all` takes all charges with one write, or none. Each is known by the epoch
        of its state, which is made before; its job finds the charge there and pays nothing more.
        Where the ledger refuses, new states are removed: nothing of them was shown.
    """
    try:
        with Ledger.load(ledger) as shared:
            shared.charge_all([
                replace(
                    shared.make_charge(work.name, work.operator.guarantee, key=epoch),
                    about=work.about(),
                )
                for (work, _), place, epoch in zip(works, places, epochs, strict=True)
                if not is_ready(place)
            ])  # fmt: skip
    except BudgetError:
        for place in new:
            discard(place)
        raise


def turns(jobs: list[Any], held: list[Held]) -> Iterator[None]:
    """Yields once for the releases at hand, and again whenever a job has released.

    Jobs that are some steps behind go first, as after a kill: the others wait for a step to be due.
    """
    yield
    left = [(job, iter(job), known) for job, known in zip(jobs, held, strict=True)]
    while left:
        behind = min(job.closed_steps for job, _, _ in left)
        for one in [one for one in left if one[0].closed_steps == behind]:
            _, releases, known = one
            release = next(releases, None)
            if release is None:
                left.remove(one)
            else:
                known[Moment(release.window, release.trigger)] = partial(same, release)
            yield


def same(release: Release) -> Release:
    """The release itself: it is in memory."""
    return release


def earlier(part: Plan, place: Path) -> Held:
    """The releases of a job in earlier runs, read when needed; its job says what is wrong there."""
    try:
        found = archived(part, place)
    except StoreError:  # nothing was released yet, or not all of it can be read
        return {}
    return {moment: partial(pick, found, *moment) for moment in found.moments} if found else {}


def archived(part: Plan, place: Path) -> Releases | None:
    """The releases that a job has made, with its post-processing; None if it has not begun."""
    folder = kept_at(place)
    if folder.is_dir() and not is_state(folder):  # it may be the state of another answer
        return of_folder(folder)
    return None if epoch_of(place) is None else after_post(of_state(place), part.post)


def releases_of(joint: JointPlan, state: str | Path) -> Releases:
    """All releases so far, joined anew from the states of all answers.

    Or the releases in one folder, of a sink or of one answer. Reads files only, also while the jobs
    run: no secret, no lock, no charge.
    """
    home = Path(state)
    if not states_in(home) and not any(kept_at(home / one.name).is_dir() for one in joint.parts):
        return opened(home)
    parts = [read_by(part, home / part.name) for part in joint.parts]
    made = [archived(part, home / part.name) for part in parts]
    found = [one for one in made if one is not None]
    moments = set.intersection(*(set(one.moments) for one in found)) if found == made else set()
    if not moments:
        raise StoreError(
            f"not all private answers of this statement have released anything in '{home.name}'.\n"
            "  to fix  run it until its first trigger, or give the state directory of its run"
        )

    def load(moment: Moment) -> Noisy[pa.Table]:
        return put_together(joint, [pick(one, *moment) for one in found]).noisy

    gone = max(one.dropped for one in found)
    return Releases({moment: partial(load, moment) for moment in moments}, dropped=gone)


def put_together(joint: JointPlan, releases: list[Release]) -> Release:
    """One release of the statement, made from one release of each answer."""
    names = tuple(part.name for part in joint.parts)
    first = releases[0]
    noisy = post_process(processed_together, joint.post, names, *(one.noisy for one in releases))
    return Release(noisy, first.window, first.trigger, first.step)
