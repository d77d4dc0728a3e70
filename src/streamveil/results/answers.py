"""Answers that combine releases: post-processing of what is public, so it costs no privacy."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, product, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamveil.batch import Moment
from streamveil.display import SHOWN, AnswerTable
from streamveil.errors import PlanError, at_least, fitting, is_real, require_text, whole
from streamveil.kinds import COUNTS, TOTALS
from streamveil.release_metadata import (
    ALLOWED,
    SUFFIXES,
    UNBOUNDED,
    Facts,
    hidden_sentence,
    missing,
    read_note,
    sentences,
)
from streamveil.results.charts import LINES, chart, chosen
from streamveil.results.draw import figure_of
from streamveil.results.intervals import (
    Interval,
    RoundedPart,
    deviations,
    plain,
    ratio,
    room_of,
    rounded_parts,
)
from streamveil.results.joint import Cell, Ends, Joint, joint_at, output_of
from streamveil.results.ranks import Ranked, rank, with_moves, with_ranks
from streamveil.results.releases import Releases
from streamveil.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

At = int | str | tuple[int | str, int] | None
NOTED = 3  # windows whose own notes are shown
HIDDEN = 1_000_000  # hidden groups that a statement covers by default
MOST_HIDDEN = 10**18  # that ranks can count
UNKNOWN = (
    "the correlation of these numbers' noise is not known: the intervals hold for any, and are wide"
    " (CSV and JSON without their metadata files need the query; variances, quantiles, computed"
    " numbers and the preset dp-sqlp stay wide)"
)
CHOSEN = (
    "groups whose noisy numbers are near the threshold that publishes a group: {:,}. Such numbers"
    " tend to be too large; these intervals do not allow for that, those of the releases do"
)
NOT_ALLOWED = (
    "these intervals cover the noise alone and allow for no such rows; those of the releases do"
)
DELTA = "intervals of means across releases use the delta method: they hold for groups of many rows"


@dataclass(frozen=True, repr=False)
class Derived(AnswerTable):
    """An answer: the key columns, then NAME, NAME_sd, NAME_low and NAME_high, and what to know.

    Intervals cover the noise with the stated confidence, key by key (of `top`: all keys at once).
    They do not cover the bias of bounding; the notes state it.
    """

    table: pa.Table
    confidence: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of numbers of one key."""

    terms: tuple[tuple[Cell, float], ...]

    def value(self, joint: Joint) -> Array:
        """The sum."""
        return np.asarray(sum(a * joint.value(cell) for cell, a in self.terms))

    def parts(self, joint: Joint) -> list[RoundedPart]:
        """Its rounded parts, as far as releases state them."""
        return rounded_parts(
            (joint.output(cell.name), cell.moment, a, joint.sd(cell)) for cell, a in self.terms
        )

    def covariance(self, joint: Joint, other: WeightedSum) -> Ends:
        """The covariance of two sums: the ends add up, each with its sign."""
        low, high = np.zeros(len(joint.keys)), np.zeros(len(joint.keys))
        for (one, a), (two, b) in product(self.terms, other.terms):
            ends = [a * b * end for end in joint.covariance(one, two)]
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return Ends(low, high)

    def is_centred(self, joint: Joint) -> bool:
        """Whether its error is noise about 0."""
        return all(joint.is_centred(cell) for cell, _ in self.terms)

    def end_to_end(self, joint: Joint, z: float) -> Interval:
        """Its interval from those of its numbers, however their errors are correlated.

        Their errors are not centred at 0, so a smaller confidence gives no smaller interval.
        """
        reach = max(z, deviations(joint.facts["confidence"]))
        below = above = np.zeros(len(joint.keys))
        for cell, a in self.terms:
            down, up = joint.sides(cell)[:: 1 if a > 0 else -1]
            below, above = below + abs(a) * down, above + abs(a) * up
        value, sd = self.value(joint), np.sqrt(self.covariance(joint, self).high)
        return Interval(value, sd, value - reach * below, value + reach * above)


@dataclass(frozen=True, repr=False)
class Answers(AnswerTable):
    """Questions to a set of releases. A release is named by its trigger, or (window, trigger).

    A window is named by its time ("2026-01-01") or its number.
    As a table it is the last release of every window.

    Raises:
        MissingExtraError: a picture is asked for, and matplotlib is not installed.
        PlanError: a window, a release or a number is asked for that is not there.
        PlanError: `confidence` is not between 0 and 1.

    >>> import streamveil as sv
    >>> query = (sv.memory({"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60}).protect("user")
    ...          .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count()).bound(max_rows=40)
    ...          .release(budget=sv.Budget(epsilon=9, delta=1e-9)))
    >>> query.answer().top("n", 1).table.column_names[:4]
    ['page', 'n', 'n_sd', 'n_low']
    """

    releases: Releases

    @property
    def table(self) -> pa.Table:  # type: ignore[override]  # read only
        """The rows of the last release of every window, in order of time."""
        return pa.concat_tables(
            [self.releases.table(moment) for moment in self._ends], promote_options="permissive"
        )

    @property
    def _ends(self) -> list[Moment]:
        """The last release of every window."""
        return list({moment.window: moment for moment in self.moments}.values())

    @property
    def notes(self) -> list[str]:  # type: ignore[override]  # read only
        """The notes on these numbers: on all windows, and on each of the newest ones."""
        return self._of_windows({one: sentences(self.releases.table(one)) for one in self._ends})

    def _of_windows(self, said: dict[Moment, list[str]]) -> list[str]:
        """The notes of one release of each window: common ones, then those of the newest."""
        full = [said[moment] for moment in said if self.releases.table(moment).num_rows]
        alike = full or [*said.values()]  # a window without a group says only that
        shared = [text for text in alike[-1] if all(text in one for one in alike)]
        own = [
            [
                f"window {self.releases.named(moment)}: {text}"
                for text in texts
                if text not in shared
            ]
            for moment, texts in reversed(said.items())
        ]
        earlier = sum(map(bool, own[NOTED:]))
        more = [f"earlier windows with notes of their own: {earlier:,} (read(window=...) has them)"]
        return [*shared, *chain.from_iterable(own[:NOTED]), *more * bool(earlier)]

    @fitting('plot("n")')
    def plot(self, name: str | None = None, *, most: int = LINES) -> Figure:
        """A matplotlib figure of one number over time; of a single release, see `AnswerTable.plot`.

        Args:
            name: the number; the first if left out.
            most: how many groups, the largest, each by itself.

        Raises:
            PlanError: the name is no number.
            MissingExtraError: matplotlib is not installed.
        """
        at_least(1, most=most)
        most = min(most, sys.maxsize)  # Arrow takes no larger number
        if len(self.moments) == 1:
            return super().plot(name, most=max(most, SHOWN))
        made = chart(self.releases, self.number(name), chosen(self.moments), most)
        figure: Figure = figure_of(made, notes=self.notes)
        return figure

    @property
    def moments(self) -> list[Moment]:
        """All releases: (window, trigger)."""
        return self.releases.moments

    @property
    def last_shown(self) -> Moment:
        """The last release that shows any group; the last of all where none does."""
        shown = (one for one in reversed(self.moments) if self.releases.table(one).num_rows)
        return next(shown, self.moments[-1])

    @fitting('difference("n", at=2, since=1)')
    def difference(
        self, name: str, at: At = None, since: At = None, *, confidence: float | None = None
    ) -> Derived:
        """How much a number changed between two releases.

        For a count or a sum in one window, that is what arrived in between. From one window to the
        next, it is how much more there was than in the window before.

        Args:
            name: the number.
            at: the release: (window, trigger), a window such as "2026-01-01", which means its last
                release, or a trigger where there is one window; the last of all if left out.
            since: the earlier release. If left out, the one just before in the window; for the
                first of a window, the last one of the window before.
            confidence: of the interval, below 1; that of the release if left out.

        Raises:
            PlanError: there is no such number or release.
        """
        end = self._moment(at)
        start = self._before(end) if since is None else self._moment(since)
        self.releases.require(start)
        part = WeightedSum(((Cell(end, name), 1.0), (Cell(start, name), -1.0)))
        return self._sum(name, part, confidence)

    @fitting('last("n", triggers=3)')
    def last(
        self, name: str, triggers: int, at: At = None, *, confidence: float | None = None
    ) -> Derived:
        """A count or sum over the last triggers only, across windows that lie side by side.

        Args:
            name: the number.
            triggers: how many, at least 1.
            at: the release: (window, trigger), a window such as "2026-01-01", which means its last
                release, or a trigger where there is one window; the last of all if left out.
            confidence: of the interval, below 1; that of the release if left out.

        Raises:
            PlanError: there is no such number or release, or windows cannot be added up.
        """
        end = self._moment(at)
        return self._sum(name, WeightedSum(self._span(name, end, triggers)), confidence)

    @fitting('moving("n", windows=7)')
    def moving(
        self, name: str, windows: int, at: At = None, *, confidence: float | None = None
    ) -> Derived:
        """The mean of a number over the last windows, each at its last release, up to that of `at`.

        Windows share no noise, so the interval is exact for counts and sums.

        Args:
            name: the number.
            windows: how many, at least 1.
            at: the release: (window, trigger), a window such as "2026-01-01", which means its last
                release, or a trigger where there is one window; the last of all if left out.
            confidence: of the interval, below 1; that of the release if left out.

        Raises:
            PlanError: there is no such number or release.
        """
        at_least(1, windows=windows)
        end = self._moment(at)
        last = {one.window: one for one in self.moments}
        before = range(end.window - 1, end.window - windows, -1)
        near = list(takewhile(last.__contains__, before))
        if len(near) < windows - 1:
            raise PlanError(
                f"there are releases of {len(near) + 1:,} windows in a row up to"
                f" {self.releases.named(end)}, not of {windows:,}{self.releases.gone}.\n"
                f"  to fix  ask for at most {len(near) + 1:,}"
            )
        cells = [*(Cell(last[one], name) for one in reversed(near)), Cell(end, name)]
        part = WeightedSum(tuple((cell, 1.0 / windows) for cell in cells))
        return self._sum(name, part, confidence, whole=False)

    @fitting('ratio("young", "n")')
    def ratio(  # noqa: PLR0913  (two numbers and two places, by name)
        self,
        top: str,
        bottom: str,
        at: At = None,
        to: At = None,
        *,
        triggers: int | None = None,
        name: str = "ratio",
        confidence: float | None = None,
    ) -> Derived:
        """One number divided by another.

        The interval is Fieller's: it covers with the stated confidence however small the bottom is,
        and is unbounded where the bottom may be 0.

        Args:
            top: the number above.
            bottom: the number below.
            at: the release: (window, trigger), a window such as "2026-01-01", which means its last
                release, or a trigger where there is one window; the last of all if left out.
            to: the release of the bottom; `at` if left out.
            triggers: takes both over this many last triggers only.
            name: the name of the new column.
            confidence: of the interval, below 1; that of the release if left out.

        Raises:
            PlanError: there is no such number or release, or `name` is that of a group's column.
            PlanError: `confidence` is not between 0 and 1.
        """
        require_text(name=name)
        if {name + end for end in ("", *SUFFIXES)}.intersection(self.releases.key_names):
            raise PlanError(f"name must differ from those of the groups, which '{name}' does not")
        end, other = self._moment(at), self._moment(at if to is None else to)
        parts = [
            WeightedSum(((Cell(moment, column), 1.0),) if triggers is None
                 else self._span(column, moment, triggers))
            for column, moment in ((top, end), (bottom, other))
        ]  # fmt: skip
        joint, notes = self._joint(parts)
        level = self._confidence(confidence)
        cov = parts[0].covariance(joint, parts[1])
        sides = [(part.value(joint), part.covariance(joint, part).high) for part in parts]
        rooms = (room_of(parts[0].parts(joint)), room_of(parts[1].parts(joint)))
        found = ratio(sides[0], sides[1], cov, deviations(level), rooms)
        return self._derived(name, joint, found, level, notes)

    @fitting('top("n", k=10)')
    def top(
        self,
        name: str,
        k: int,
        at: At = None,
        *,
        since: At = None,
        hidden: int = HIDDEN,
        confidence: float | None = None,
    ) -> Derived:
        """The groups that may be among the k largest, and which of them certainly are.

        All statements hold at once with the stated confidence. See `rank`.

        Args:
            name: the number.
            k: how many.
            at: the release: (window, trigger), a window such as "2026-01-01", which means its last
                release, or a trigger where there is one window; the last of all if left out.
            since: an earlier release, (window, trigger): the list then says who certainly entered,
                left or stayed since then; of all others it is open.
            hidden: the statements also hold against so many groups that are not shown.
            confidence: of the interval, below 1; that of the release if left out.

        Raises:
            PlanError: there is no such number or release.
        """
        level = self._confidence(confidence)
        if since is None:
            joint, ranked, notes = self._ranked(name, self._moment(at), k, level, hidden)
            made = self._derived(name, joint, ranked.interval, level, notes)
            return Derived(with_ranks(made.table, ranked), level, (*made.notes, ranked.note))
        each = 1 - (1 - level) / 2  # of either list, so that both hold at once
        moments = self._moment(at), self._moment(since)
        lists = [self._ranked(name, moment, k, each, hidden, moments) for moment in moments]
        shown = [
            self._derived(name, joint, ranked.interval, each, []).table
            for joint, ranked, _ in lists
        ]
        keys = len(self.releases.key_names)
        table = with_moves(shown, [ranked for _, ranked, _ in lists], keys, k)
        (_, ranked, notes), both = lists[0], f"both lists hold at once with confidence {level:.4g}"
        return Derived(table, level, (*notes, ranked.note, both))

    # ---- helpers

    def _before(self, end: Moment) -> Moment:
        """The release before one."""
        last = [one for one in self.moments if one.window == end.window - 1]
        if end.trigger > 1:
            return Moment(end.window, end.trigger - 1)
        if last:
            return last[-1]
        raise PlanError(
            f"no release is just before the first of window {self.releases.named(end)}"
            f"{self.releases.gone}.\n  to fix  since says which one to compare with"
        )

    def _ranked(
        self, name: str, moment: Moment, k: int, level: float, hidden: int,
        about: Sequence[Moment] = (),
    ) -> tuple[Joint, Ranked, list[str]]:  # fmt: skip
        """The ranks at one release; its notes also cover the other releases of the question."""
        at_least(0, hidden=hidden)
        if hidden > MOST_HIDDEN:
            raise PlanError(f"hidden must be at most {MOST_HIDDEN:,}, not {hidden:,}")
        part = WeightedSum(((Cell(moment, name), 1.0),))
        joint, notes = self._joint([part], about)
        sd = np.sqrt(part.covariance(joint, part).high)
        kept = self._hidden(name, moment, hidden)
        return joint, rank(part.value(joint), sd, k, level, kept, part.parts(joint)), notes

    def _sum(
        self, name: str, part: WeightedSum, confidence: float | None, *, whole: bool = True
    ) -> Derived:
        joint, notes = self._joint([part])
        level = self._confidence(confidence)
        z, variance = deviations(level), part.covariance(joint, part).high
        if part.is_centred(joint):
            found = plain(part.value(joint), variance, z, part.parts(joint))
        else:
            found = part.end_to_end(joint, z)
        return self._derived(name, joint, found, level, notes, whole=whole)

    def _span(self, name: str, end: Moment, triggers: int) -> tuple[tuple[Cell, float], ...]:
        """The amount of the last triggers: totals at their end minus totals before them."""
        at_least(1, triggers=triggers)
        self._require_total(name)
        if triggers == end.trigger:
            return ((Cell(end, name), 1.0),)
        if triggers < end.trigger:
            start = self.releases.require(Moment(end.window, end.trigger - triggers))
            return (Cell(end, name), 1.0), (Cell(start, name), -1.0)
        return self._span_of_windows(name, end, triggers)

    def _span_of_windows(
        self, name: str, end: Moment, triggers: int
    ) -> tuple[tuple[Cell, float], ...]:
        windows = (self.releases.facts or {}).get("windows")
        if windows is None or windows["whole"] or windows["overlap"] > 1:
            raise PlanError(
                f"the last {triggers} triggers reach back beyond the window, and only windows that"
                " are known to lie side by side can be added up.\n"
                f"  to fix  ask for at most {end.trigger} triggers"
            )
        until = self._step(end)
        begun = until - triggers  # the last step that no longer counts
        terms, steps = list[tuple[Cell, float]](), set[int]()
        for window, made in self._windows_near(end.window, begun, until):
            last = max(made, key=made.__getitem__)
            inside = made[last] - begun  # of its triggers
            terms += [(Cell(Moment(window, last), name), 1.0)]
            if last > inside:
                before = self.releases.require(Moment(window, last - inside))
                terms += [(Cell(before, name), -1.0)]
            steps.update(made.values())
        missing = triggers - sum(begun < step <= until for step in steps)
        if missing:
            most = next(back for back in count(1) if until - back not in steps)
            raise PlanError(
                f"of the last {triggers} triggers {missing} have no release here.\n"
                f"  to fix  ask for at most {most}"
            )
        return tuple(terms)

    def _windows_near(
        self, middle: int, begun: int, until: int
    ) -> Iterator[tuple[int, dict[int, int]]]:
        """Windows with releases after one step and up to another, each with trigger -> step.

        Windows begin and end in their order, and the triggers of a window are steps that follow
        each other: so one release of each window near the middle one is read, however many are far.
        """
        held = dict[int, list[int]]()
        for moment in self.moments:
            held.setdefault(moment.window, []).append(moment.trigger)
        windows = sorted(held)
        at = windows.index(middle)

        def near(some: Iterable[int]) -> Iterator[tuple[int, dict[int, int]]]:
            for window in some:
                first = held[window][0]
                before = self._step(Moment(window, first)) - first
                made = {n: before + n for n in held[window] if before + n <= until}
                if not made or max(made.values()) <= begun:
                    return
                yield window, made

        earlier = list(near(reversed(windows[: at + 1])))
        yield from reversed(earlier)
        yield from near(windows[at + 1 :])

    def _step(self, moment: Moment) -> int:
        step = self.releases.step(moment)
        assert step is not None  # noqa: S101  (there are facts)
        return step

    def _require_total(self, name: str) -> None:
        facts = output_of(self.releases, self.releases.require_answer(name))
        if facts.get("function") not in (None, "count", "sum"):
            raise PlanError(
                f"'{name}' is not a total: what arrived lately does not follow from two of its"
                " values.\n  to fix  use difference for its change, or ratio of a sum and a count"
            )

    def _moment(self, at: At) -> Moment:
        if at is None:
            return self.moments[-1]
        if isinstance(at, tuple) and len(at) == 2:
            window = self.releases.window(at[0])
            return self.releases.require(Moment(window, whole("a trigger", at[1])))
        last = {moment.window: moment for moment in self.moments}
        if isinstance(at, str):
            window = self.releases.window(at)
            return self.releases.require(last.get(window, Moment(window, 1)))
        windows = set(last)
        if len(windows) > 1:
            raise PlanError(
                f"there are {len(windows)} windows; name a release by (window, trigger), such as"
                f" {self._at(self.moments[-1])}, or its window alone"
            )
        return self.releases.require(Moment(windows.pop(), whole("a trigger", at)))

    def _at(self, moment: Moment) -> tuple[int | str, int]:
        """A release in the form in which a caller names it."""
        place = self.releases.time(moment)
        return moment.window if place is None else place.name, moment.trigger

    def _confidence(self, given: float | None) -> float:
        if given is None:
            return float((self.releases.facts or {}).get("confidence", 0.95))
        if not is_real(given) or not 0 < given < 1:
            raise PlanError(f"confidence must be a number above 0 and below 1, not {given!r}")
        return float(given)

    def _joint(
        self, parts: list[WeightedSum], about: Sequence[Moment] = ()
    ) -> tuple[Joint, list[str]]:
        """The keys that all terms show, and the notes on the question."""
        asked = [cell for part in parts for cell, _ in part.terms]
        for cell in asked:
            self.releases.require_answer(cell.name)
        cells = list(dict.fromkeys(asked))
        joint, absent = joint_at(self.releases, [cell.moment for cell in cells])
        notes = []
        if absent:
            notes.append(
                f"groups left out, because one of the releases does not have them: {absent:,}"
            )
        if any(not joint.is_known(*pair) for pair in product(cells, cells) if pair[0] != pair[1]):
            notes.append(UNKNOWN)
        if corrected := max(map(joint.corrected, cells)):
            notes.append(CHOSEN.format(corrected))
        outputs = {cell.name: joint.output(cell.name) for cell in cells}
        if any(facts.get("function") == "avg" for facts in outputs.values()):
            notes.append(DELTA)
        ends = {one.window: one for one in sorted({*about, *(cell.moment for cell in cells)})}
        begun = [cell.moment for part in parts for cell, weight in part.terms if weight < 0]
        said = {
            one: self._missing(
                one, outputs, next((b for b in begun if b.window == one.window and b < one), None)
            )
            for one in ends.values()
        }
        notes += [text.replace(ALLOWED, NOT_ALLOWED) for text in self._of_windows(said)]
        last = self.releases.table(max(ends.values()))
        if not last.num_rows and self.releases.table(self.last_shown).num_rows:
            notes.append(f"the last release with a group is at = {self._at(self.last_shown)}")
        note = read_note(self.releases.table(self.releases.moments[0]).schema)
        return joint, notes if note is None else [*notes, note]

    def _missing(self, moment: Moment, names: Collection[str], begun: Moment | None) -> list[str]:
        """Notes on rows missing from these numbers of a release, or on why it shows no group.

        For numbers of rows since an earlier release, notes on those rows.
        """
        table = self.releases.table(moment)
        hidden = hidden_sentence(table)
        since = None if begun is None else self.releases.table(begun).schema
        return missing(table.schema, names, since) if hidden is None else [hidden]

    def _derived(
        self, name: str, joint: Joint, found: Interval, level: float, notes: list[str],
        *, whole: bool = True,
    ) -> Derived:  # fmt: skip
        """Key columns and the interval, in the order of the keys; null where there is no number."""
        names, columns = list(self.releases.key_names), list(joint.labels.columns)
        whole = whole and joint.output(name).get("function") in COUNTS
        for suffix, column in zip(("", "_sd", "_low", "_high"), found, strict=True):
            names.append(name + suffix)
            cells = np.rint(column).astype(np.int64) if whole and not suffix else column
            columns.append(pa.array(cells, mask=np.isnan(found.value)))
        return Derived(pa.table(columns, names), level, tuple(notes))

    def _hidden(self, name: str, moment: Moment, groups: int) -> tuple[Facts | None, float, int]:
        """The test that kept groups hidden, the most that a unit adds to one, how many to allow."""
        facts = self.releases.facts
        if facts is None:
            return None, np.nan, groups
        hidden = self.releases.hidden(moment)
        if hidden is None:
            return None, 0.0, 0  # groups are public: all are shown
        output = output_of(self.releases, name)
        known = output["function"] in TOTALS and UNBOUNDED not in output
        lanes = output["lanes"] if known else []
        if "lane" in hidden:  # its total itself
            return hidden, 1.0 if lanes == [hidden["lane"]] else np.nan, groups
        return hidden, facts["lanes"][lanes[-1]]["most"] if lanes else np.nan, groups
