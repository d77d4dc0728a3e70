"""The part of `explain` on rows that are combined per unit: each step, and what joins keep."""

from __future__ import annotations

from streamveil.plan import SourceSpec
from streamveil.plan.joins import MATCHES, Joined, OwnJoin, OwnSelect, OwnUnion
from streamveil.plan.own_rows import (
    MOST_PARTS,
    OwnRows,
    OwnSets,
    OwnStep,
    OwnUnnest,
    OwnWindows,
    kept_words,
)


def steps_of(source: SourceSpec) -> tuple[OwnStep, ...]:
    """The steps of a source."""
    return source.steps if isinstance(source, OwnRows) else ()


def words_of(step: OwnStep) -> str:
    """A step in words."""
    kept = f" where {step.where}" if step.where else ""
    columns = ", ".join(
        f"{c.name} = {c.function}({c.expression or ''})" for c in step.columns
    )  # fmt: skip
    if isinstance(step, OwnUnnest):
        return f"one for each {step.name} in {step.expression}{kept}, {MOST_PARTS:,} at most"
    if isinstance(step, OwnSets):
        named = ", ".join(map(step.words, step.sets))
        return f"one in each of {len(step.sets)} sets{kept}: {named}"
    if isinstance(step, OwnWindows):
        return f"beside each{kept}: {columns}"
    if isinstance(step, Joined):
        return words_of_join(step) + kept
    if isinstance(step, OwnUnion):
        return f"and those of '{step.other.name}' after them{kept}"
    if isinstance(step, OwnSelect):
        return f"as {', '.join(key.name for key in step.keys)}{kept}"
    keys = ", ".join(key.expression for key in step.keys) or "nothing"
    return f"one for each {keys}{kept}" + (f": {columns}" if columns else "")


def words_of_join(step: Joined) -> str:
    """A join in words."""
    equal = "".join(f", {key.expression} = {key.name}" for key in step.keys)
    theirs = f"the public table '{step.sides[1]}'"
    if isinstance(step, OwnJoin):
        theirs = f"the same unit in '{step.other.name}'"
    if step.how in ("semi", "anti"):
        return f"where {'no ' if step.how == 'anti' else ''}row of {theirs} is there{equal}"
    alone = ", or alone" if step.how == "left" else ""
    if isinstance(step, OwnJoin) and step.kept is not None:
        return f"each beside rows of {theirs}{equal}{alone}: {kept_words(step)}"
    return f"each beside rows of {theirs} ({MATCHES:,} at most){equal}{alone}"


def kept_rows(source: SourceSpec) -> list[tuple[str, str]]:
    """The rows of each unit that joins on live data keep, in addition to its bounds."""
    found = list[tuple[str, str]]()
    for step in steps_of(source):
        if isinstance(step, OwnJoin) and step.kept is not None:
            both = ", and as many of the stream" if step.within_us is not None else ""
            rows = "row" if step.kept == 1 else "rows"
            text = f"up to {step.kept:,} {rows} in all columns{both}; also on disk, as they came"
            found.append((f"per unit in '{step.other.name}'", text))
    return found
