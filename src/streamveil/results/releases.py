"""Releases to read from: in memory, in a folder that a sink wrote, or in a state directory."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from streamveil.batch import Moment, Release
from streamveil.core.noisy import Noisy, require_noisy, restored, values
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import facts_of, hidden_facts
from streamveil.dataflow.keys import encode_keys
from streamveil.errors import PlanError, SourceError, nearest, require_text, whole
from streamveil.release_metadata import (
    Facts,
    ReleaseTime,
    from_json,
    metadata_file,
    numbers_of,
    read_facts,
    read_parquet,
    read_schema,
    read_time,
    triggers_in,
)

FIELD = re.compile(rb'("(?:[^"]|"")*"|[^,\n]*)(?:,|\n)')  # of what the sink writes
NUMBER = re.compile(r"window=(-?\d+)$")  # of windows without a time
TIMES = pa.timestamp("us", tz="UTC")
KEPT_TIMES = ("window_start", "window_end")
KEPT = 16  # tables held in memory
KEPT_FILES = 4  # of several releases
Load = Callable[[], Noisy[pa.Table]]


class Releases:
    """Releases of one job, read when they are needed.

    Their facts come with them, or from the `operator` of their query.
    """

    def __init__(
        self, loads: Mapping[Moment, Load], operator: GroupBy | None = None, dropped: int = 0
    ) -> None:
        """`dropped`: earlier releases that are no longer kept."""
        if not loads:
            raise SourceError(
                "there is no release to answer from.\n"
                "  to fix  give releases of a query, the folder of its sink, or its state directory"
            )
        self.loads = dict(sorted(loads.items()))
        self._held: OrderedDict[Moment, Noisy[pa.Table]] = OrderedDict()
        self._keys: dict[Moment, pa.Array] = {}
        self.operator, self.dropped = operator, dropped
        told = None if operator is None else facts_of(operator)
        self.facts = read_facts(self.table(self.moments[0]).schema) or told

    @property
    def moments(self) -> list[Moment]:
        """All of them, in order."""
        return list(self.loads)

    def table(self, moment: Moment) -> pa.Table:
        """The rows of one release."""
        return values(self.noisy(moment))

    def noisy(self, moment: Moment) -> Noisy[pa.Table]:
        """One release."""
        if moment not in self._held:
            self._held[moment] = require_noisy(self.loads[self.require(moment)]())
            while len(self._held) > KEPT:
                self._held.popitem(last=False)
        self._held.move_to_end(moment)
        return self._held[moment]

    def require(self, moment: Moment) -> Moment:
        """The moment, if there is such a release."""
        if moment not in self.loads:
            inside = [m for m in self.loads if m.window == moment.window]
            first, last = (inside or self.moments)[0], (inside or self.moments)[-1]
            window = self.named(first) if inside else moment.window
            known = (
                f"window {window} has triggers {first.trigger} to {last.trigger}" if inside
                else f"there are windows {self.named(first)} to {self.named(last)}"
            )  # fmt: skip
            raise PlanError(
                f"there is no release {moment.trigger} of window {window}; {known}{self.gone}"
            )
        return moment

    @property
    def gone(self) -> str:
        """The sentence on dropped earlier releases, if there are any."""
        return f"; {self.dropped:,} earlier ones are not kept any more" if self.dropped else ""

    def named(self, moment: Moment) -> str:
        """The name of the window of a release."""
        time = self.time(moment)
        return str(moment.window) if time is None else time.name

    def time(self, moment: Moment) -> ReleaseTime | None:
        """The time of a release, if it states one."""
        return read_time(self.table(moment).schema)

    def window(self, name: str | int) -> int:
        """The number of a window, from its number or the time that names it."""
        if not isinstance(name, str):
            return whole("a window", name)
        if re.fullmatch(r"-?\d+", name):
            return int(name)
        last = {moment.window: moment for moment in self.moments}
        names = {place.name: place.window for place in map(self.time, last.values()) if place}
        if name not in names:
            raise PlanError(f"there is no window '{name}'{nearest(name, names)}")
        return names[name]

    def step(self, moment: Moment) -> int | None:
        """The step of the job that made a release."""
        facts = read_facts(self.table(moment).schema)
        if facts is not None and "step" in facts:  # a join of several has none
            return int(facts["step"])
        if self.operator is None:
            return None
        return self.operator.schedule.first_step(moment.window) + moment.trigger - 1

    def hidden(self, moment: Moment) -> Facts | None:
        """The facts that kept groups hidden at a release; None if public, or nothing is known.

        See `dataflow.grouping.hidden_facts`.
        """
        facts = read_facts(self.table(moment).schema)
        if facts is not None or self.operator is None:
            return (facts or {}).get("hidden")
        return hidden_facts(self.operator, moment.trigger)

    @property
    def key_names(self) -> list[str]:
        """The key columns."""
        if self.facts is not None:
            return list(self.facts["keys"])
        names: list[str] = self.table(self.moments[0]).column_names
        return names[: min((names.index(name) for name in self.answers), default=0)]

    @property
    def answers(self) -> list[str]:
        """The columns that hold noisy numbers."""
        return numbers_of(self.table(self.moments[0]).column_names)

    def require_answer(self, name: str) -> str:
        """The name, if it is that of a noisy number."""
        require_text(name=name)
        if name not in self.answers:
            raise PlanError(f"'{name}' is not a number here{nearest(name, self.answers)}")
        return name

    def keys(self, moment: Moment) -> pa.Array:
        """The keys of a release, as bytes that can be compared."""
        if moment not in self._keys:
            table = self.table(moment)
            columns = [table.column(name).combine_chunks() for name in self.key_names]
            self._keys[moment] = require_distinct(encode_keys(columns, table.num_rows))
        return self._keys[moment]

    def column(self, moment: Moment, name: str) -> np.ndarray[Any, Any]:
        """One column of a release, nulls as NaN; without rows, a file may lack columns."""
        table = self.table(moment)
        if not table.num_rows:
            return np.zeros(0)
        column = table.column(name).combine_chunks()
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), float)


def require_distinct(keys: pa.Array) -> pa.Array:
    """Keys, if each row has its own: columns computed from keys may not."""
    if len(keys.unique()) < len(keys):
        raise PlanError(
            "several rows of a release have the same key columns, so they cannot be followed from"
            " one release to another.\n"
            "  to fix  select the columns that are grouped by, or answer from the state directory"
        )
    return keys


def of_releases(releases: Iterable[Release], operator: GroupBy | None = None) -> Releases:
    """Releases of one job in memory; of two with the same place, which are equal, one is kept."""
    loads: dict[Moment, Load] = {}
    jobs = set[str]()
    for release in releases:
        if not isinstance(release, Release):
            raise PlanError(f"answers takes releases, not a {type(release).__name__} among them")
        loads[Moment(release.window, release.trigger)] = _held(release.noisy)
        if facts := read_facts(release.table.schema):
            jobs.add(facts.get("job", ""))
    if len(jobs) > 1:
        raise PlanError(
            f"answers takes releases of one job, and these are of several: {sorted(jobs)}.\n"
            "  to fix  answers(...) of each by itself"
        )
    return Releases(loads, operator)


def of_folder(path: str | Path, operator: GroupBy | None = None) -> Releases:
    """What the files sink wrote: `<path>/<job>/window=2026-01-01/trigger=T.parquet` (or csv, json).

    Raises SourceError where there is no such folder, or releases of several jobs.
    """
    home = Path(path)
    if not home.is_dir():
        raise SourceError(
            f"there is no folder '{home}'.\n"
            "  to fix  give the folder that a sink wrote, or the state directory of a job"
        )
    found: dict[Path, dict[Moment, Load]] = {}
    windows: dict[Path, int] = {}
    several = lru_cache(KEPT_FILES)(tables_of)
    for file in sorted(home.rglob("window=*/trigger=*")):
        triggers = triggers_in(file.name)
        if triggers and file.parent not in windows:
            windows[file.parent] = window_of(file, operator, len(windows))
        load = several if len(triggers) > 1 else tables_of
        for turn, trigger in enumerate(triggers):
            place = Moment(windows[file.parent], trigger)
            found.setdefault(file.parent.parent, {})[place] = partial(_file, load, file, turn)
    if len(found) > 1:
        jobs = ", ".join(sorted(folder.name for folder in found))
        raise SourceError(f"'{home}' holds releases of several jobs ({jobs}); name one folder")
    if not found:
        raise SourceError(
            f"'{home}' holds no release that a sink of files wrote.\n"
            "  to fix  give such a folder, or the state directory of a job: it has what other sinks"
            " got, such as Delta tables and databases"
        )
    return Releases(next(iter(found.values())), operator)


def window_of(file: Path, operator: GroupBy | None, turn: int) -> int:
    """The number of the window in whose folder a release is.

    From the release or from its query; where neither tells, from the order of the folders.
    """
    number = NUMBER.search(file.parent.name)
    if number:
        return int(number[1])
    beside = metadata_file(file)
    try:
        schema = (
            read_schema(file) if file.suffix == ".parquet"
            else from_json(pa.schema([]), beside.read_bytes())
        )  # fmt: skip
    except (OSError, ValueError, AttributeError):  # ArrowInvalid is a ValueError
        schema = pa.schema([])
    place = read_time(schema)
    if place is not None:
        return place.window
    name = file.parent.name.partition("=")[2]
    known = None if operator is None else operator.schedule.window_named(name)
    return turn if known is None else known


def _held(table: Noisy[pa.Table]) -> Load:
    return lambda: table


def _file(read: Callable[[Path], list[pa.Table]], path: Path, turn: int) -> Noisy[pa.Table]:
    """One of the releases in a file."""
    return restored(read(path)[turn])


def read_csv(path: Path) -> pa.Table:
    """A release in CSV, where only texts have quotes: "007" is not 7, "" not null."""
    whole = path.read_bytes()
    names = pyarrow.csv.open_csv(pa.BufferReader(whole[: whole.find(b"\n") + 1])).schema.names
    fields = [field[:1] == b'"' for field in FIELD.findall(whole)]
    texts = [name for at, name in enumerate(names) if any(fields[len(names) + at :: len(names)])]
    found = pyarrow.csv.read_csv(
        pa.BufferReader(whole), parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()), null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip
    return found.cast(pa.schema([  # of what has no quotes, times far away are texts to Arrow
        field.with_type(TIMES) if field.type == pa.string() and field.name not in texts else field
        for field in found.schema
    ]))  # fmt: skip


def read_json(path: Path) -> pa.Table:
    """A release in JSON lines, where only the times of a window are read as times."""
    whole = path.read_bytes()
    rows = [json.loads(line) for line in whole.splitlines()]
    if not rows:
        return without_rows(metadata_file(path))
    texts = {name for row in rows for name, cell in row.items() if isinstance(cell, str)}
    known = pa.schema([(name, pa.string()) for name in sorted(texts.difference(KEPT_TIMES))])
    options = pyarrow.json.ParseOptions(explicit_schema=known)
    found = pyarrow.json.read_json(pa.BufferReader(whole), parse_options=options)
    return found.select([name for name in rows[0] if name in found.column_names])


def without_rows(beside: Path) -> pa.Table:
    """A release that shows no group, with the columns of the document next to it."""
    schema = from_json(pa.schema([]), beside.read_bytes()) if beside.exists() else pa.schema([])
    facts = read_facts(schema) or {}
    outputs = [one["name"] for one in facts.get("outputs", ())]
    numbers = [name + end for name in outputs for end in ("", "_sd", "_low", "_high")]
    return pa.table({name: pa.nulls(0) for name in (*facts.get("keys", ()), *numbers, "trigger")})


def tables_of(path: Path) -> list[pa.Table]:
    """The releases in a file, as many as its name says."""
    beside = metadata_file(path)
    try:
        if path.suffix == ".parquet":
            tables = read_parquet(path)
        else:
            table = read_csv(path) if path.suffix == ".csv" else read_json(path)
            tables = [table]
            if beside.exists():
                tables = [table.cast(from_json(table.schema, beside.read_bytes()))]
    except (OSError, pa.ArrowInvalid, ValueError, AttributeError):
        tables = []
    if len(tables) != len(triggers_in(path.name)):
        raise SourceError(
            f"'{path.name}' in '{path.parent}' cannot be read.\n"
            "  to fix  restore the file, or answer from the state directory"
        )
    return tables
