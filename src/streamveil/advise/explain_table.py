"""Explains the guarantee and the expected accuracy over a changing table, before any row."""

from __future__ import annotations

from math import isfinite
from typing import Any

from streamveil.compiler.tables import Design
from streamveil.plan import Aggregate, Plan
from streamveil.plan.options import ASK_SHARE, CONFIDENCE, EXPECTED_UPDATES, MAX_CHANGES, MECHANISM

Row = tuple[str, ...]
MANY = 12  # values of a domain or sets of columns that are written out


def table_rows(plan: Plan, releases: str, sinks: str) -> tuple[Row, ...]:
    """The query, as the plan has it."""
    source: Any = plan.source
    sets = [", ".join(names) or "all records" for names in plan.sets]
    shown = "; ".join(sets[:MANY]) + (f"; and {len(sets) - MANY} more" if len(sets) > MANY else "")
    deletes = source.changelog == "insert-delete"
    return (
        ("job", plan.name),
        ("table", f"{source.name} ({source.kind}), {source.changelog}"),
        ("records", f"named by {source.record}" if source.record else "every row is one"),
        ("operation", f"column {source.operation}" if deletes else "every row inserts"),
        *(("domain", f"{name}: {_values(values)}") for name, values in source.domains),
        ("where", plan.where or "every record"),
        ("groups", shown),
        *(("answer", f"{one.name} = {_counted(one)}") for one in plan.aggregates),
        ("releases", releases),
        ("sinks", sinks),
    )


def _counted(one: Aggregate) -> str:
    """The things that an answer counts, in words."""
    distinct = "distinct " if one.function == "count_distinct" else ""
    return f"count({distinct}{one.expression or '*'})"


def _values(values: tuple[Any, ...]) -> str:
    if len(values) <= MANY:
        return ", ".join(str(value) for value in values)
    return f"{values[0]} .. {values[-1]} ({len(values):,} values)"


def choice_rows(design: Design) -> tuple[Row, ...]:
    """Every candidate with its errors; the first one runs."""
    size = design.workload.size
    first = design.candidate
    others = [one for one in design.choice.candidates if one is not first]
    return tuple(
        (
            one.name + (" (runs)" if one is first else ""),
            _records(one.proved, size),
            f"{one.expected:,.0f} ({one.expected / size:.1%})",
            one.why,
        )
        for one in [first, *others]
    )


def _records(error: float, size: float) -> str:
    if not isfinite(error):
        return "nothing proved"
    return f"{error:,.0f}" if error < size else "more than all"


CHOICE = (MECHANISM.name, "proved (95%)", "expected", "why")


def noise_rows(design: Design, triggers: tuple[int, ...]) -> tuple[Row, ...]:
    """The noise of the worst answer at some releases, if answers are data plus noise."""
    deviations = deviation_at(design, triggers)
    if not deviations:
        reach = "see MECHANISM: the expected error of the worst answer at the end"
        return (("not plain noise", reach),)
    return (("worst answer of a release", *(f"{deviations[t]:,.4g}" for t in triggers)),)


def deviation_at(design: Design, triggers: tuple[int, ...]) -> dict[int, float]:
    """Standard deviations of the worst answer; empty if answers are not data plus noise."""
    mechanism = design.candidate.mechanism
    at = getattr(getattr(mechanism, "counter", mechanism), "deviation", None)
    return {} if at is None else {t: float(at(t)) for t in triggers}


def question_rows(design: Design) -> tuple[Row, ...]:
    """The cost of questions, and the accuracy of their answers."""
    live = design.adaptive
    if design.distinct is not None:
        return (("ASK", "questions count records: ask them of a statement that does"),)
    if live is None:
        return (("ASK", "what follows from the releases (free); ask_share pays for more"),)
    share = float(design.ask_share)
    least = live.inner.least
    planned = f"{live.halts:,} corrections" + (" each time the table doubles" * live.only_grows)
    return (
        ("ASK", f"{share:.0%} of the budget: {planned} are paid for; all other answers are free"),
        ("threshold", f"an answer is corrected when it seems wrong by more than about "
                      f"{max(least, live.inner.threshold * live.start):,.0f} records"),
    )  # fmt: skip


def bias_rows(plan: Plan) -> tuple[Row, ...]:
    """The errors that no interval covers."""
    source: Any = plan.source
    rows = [("values outside the domains", "such records are not in the table; they are counted "
             "for the operator")]  # fmt: skip
    if source.record:
        rows.append((
            f"ids inserted more than {source.lives:,} time(s)",
            "later insertions are left out; lives = n allows n, at n times the cost",
        ))  # fmt: skip
    if (changes := plan.options.get(MAX_CHANGES.name)) is not None:
        rows.append((
            f"values that come or go more than {changes:,} time(s) in a group",
            "counted, or not, as they were after these changes; how many they are is not told",
        ))  # fmt: skip
    return tuple(rows)


def default_rows(plan: Plan, design: Design) -> tuple[Row, ...]:
    """The settings that the query left open, their values, and why."""
    given, w = plan.options, design.workload
    quiet = {
        MECHANISM: (design.candidate.name, "least expected error; a counter unless half of it"),
        EXPECTED_UPDATES: (
            f"{w.updates:,.0f}",
            "every record comes once" if w.grows else "every record comes and goes once",
        ),
        ASK_SHARE: ("0", "all of the budget is for the releases"),
        CONFIDENCE: ("0.95", "of all intervals of a release together"),
    }
    rows = [(one.name, *said) for one, said in quiet.items() if one.name not in given]
    if not design.source.lives > 1 and design.source.record:
        rows.append(("lives", "1", "an id comes once: an update only deletes; more cost more"))
    return tuple(rows)


def usefulness(design: Design) -> str | None:
    """A warning if the mechanism's answers are of little use; else None."""
    error, w = design.candidate.expected, design.workload
    if error < design.worth:
        return None
    return (
        f"the worst answer is expected to be wrong by {error:,.0f} of {w.size:,.0f} "
        f"{design.counts}. The "
        "job is refused; accept_error = TRUE runs it"
    )
