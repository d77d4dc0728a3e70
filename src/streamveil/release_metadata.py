"""Facts and sentences about the numbers of a release, in the metadata of its schema.

For formats without metadata (CSV, JSON lines) they are in a file next to the release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.kinds import RATIOS

FACTS = b"streamveil"  # the key columns, the correlation of noise of releases, the cut rows
NOTE = b"streamveil.note"  # a sentence that everything derived from a release must repeat
TIME = b"streamveil.time"  # the time of a release, see `ReleaseTime`
SAID = "notes"  # in a document: the sentences of a release, which follow from the rest
VERSION = 1
ENDS = ("_low", "_high")  # columns of a number's interval
SUFFIXES = ("_sd", *ENDS)  # columns after a number: its deviation and its interval
Facts = dict[str, Any]
compact = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes one a call
Names = Collection[str] | None  # of numbers; None: all
MORE_SHOWN = "larger groups, fewer releases or a larger epsilon publish more"
SURELY = 3.0  # deviations below which noise alone may show cut rows: once in 740 above it
HALF_DIGIT = 0.5e-4  # the most by which a share is rounded
OVER = "are not counted: they were over the contribution bound"
OF_SHOWN = " of the published groups"  # rows of other groups are in no number anyway
SINCE = " since the earlier release"
UNBOUNDED = "unbounded"  # among the facts of a number: the reason why it is missing
UNHELD = "bias", "clamped", UNBOUNDED  # facts of a number that its interval does not hold
OF_KEPT = (
    "of the rows that were kept, in which units with many rows have less weight than in all rows;"
    " no interval covers the difference"
)
REPEATS = "further rows of a unit in a group that counts it already are not among them"
ALLOWED = (
    "intervals allow each group three times its share of these rows: the true number of a group"
    " that lost more (one unit with many rows is enough) can lie outside"
)


def numbers_of(names: Sequence[str]) -> list[str]:
    """Columns that hold noisy numbers: those with columns for a deviation and an interval.

    >>> numbers_of(["page", "n", "n_sd", "n_low", "n_high"])
    ['n']
    """
    return [name for name in names if all(name + end in names for end in SUFFIXES)]


def read_facts(schema: pa.Schema) -> Facts | None:
    """The facts of a release, if it carries any that this version knows."""
    text = (schema.metadata or {}).get(FACTS)
    facts: Facts = json.loads(text) if text else {}
    return facts if facts.get("version") == VERSION else None


def completed(facts: bytes, cut: dict[str, float] | None) -> bytes:
    """The facts of a release, given without their last brace, with the facts about cut rows.

    >>> completed(b'{"version":1', {"rows": 2.0})
    b'{"version":1,"cut":{"rows":2.0}}'
    """
    lost = b"" if cut is None else b',"cut":' + compact(cut).encode()
    return facts + lost + b"}"


def noted(table: pa.Table, note: str, place: bytes) -> pa.Table:
    """A release with a sentence that everything derived from it must repeat."""
    return table.replace_schema_metadata({NOTE: note.encode(), TIME: place})


class ReleaseTime(NamedTuple):
    """The time of a release."""

    window: int  # its number
    name: str  # of the window, by its time
    until: int | None  # microseconds since 1970; rows up to there are in; None: unknown
    zone: str = ""  # the time zone of its windows


def kept_time(place: ReleaseTime) -> bytes:
    """The time of a release as metadata."""
    return compact(place._asdict()).encode()


def read_time(schema: pa.Schema) -> ReleaseTime | None:
    """The time of a release, if it carries one.

    >>> read_time(pa.schema([], {TIME: kept_time(ReleaseTime(20454, "2026-01-01", None))}))
    ReleaseTime(window=20454, name='2026-01-01', until=None, zone='')
    """
    text = (schema.metadata or {}).get(TIME)
    return None if text is None else ReleaseTime(**json.loads(text))


def read_note(schema: pa.Schema) -> str | None:
    """The sentence of a release, if it carries one."""
    text = (schema.metadata or {}).get(NOTE)
    return None if text is None else text.decode()


def cut_sentence(facts: Facts, names: Names = None, since: Facts | None = None) -> str | None:
    """The rows that contribution bounding cut: how many, if the release tells it, or which.

    `since` are facts of an earlier release of the window, if a number is about rows since then.
    """
    cut = facts.get("cut")
    if facts.get("uncut"):  # every unit has one row, and every bound lets it in
        return None
    if cut is None:
        which = said_of_outputs(facts, "bias", names)
        return "; ".join([*which, *said_of_kept(facts, names)]) if which else None
    units = {output["function"] for output in facts["outputs"]} == {"count_units"}
    about = (
        REPEATS if cut.get("first") else "a unit counts once in a group, however many rows it has"
    )
    whose = OF_SHOWN if "cut_of" in facts else ""
    before = (since or {}).get("cut")
    if before is None:
        said = [_rows_over(cut, "or more rows", "rows", whose)]
    else:
        said = [_rows_over(cut_between(before, cut), "rows", "rows", whose, SINCE)]
    said += [about] * units + [ALLOWED] * bool(facts.get("true_intervals"))
    return "; ".join([*said, *said_of_kept(facts, names)])


def said_of_kept(facts: Facts, names: Names = None) -> list[str]:
    """The means, deviations and quantiles that are not of all rows.

    >>> said_of_kept({"outputs": [{"name": "m", "function": "avg"}]})[0].partition(",")[0]
    'm: of the rows that were kept'
    """
    found = [
        one["name"]
        for one in facts.get("outputs", ())
        if one.get("function") in RATIOS
        and (names is None or one["name"] in names)
        and UNBOUNDED not in one
    ]
    return [f"{', '.join(found)}: {OF_KEPT}"] if found else []


def _rows_over(cut: Facts, about: str, at_most: str, whose: str, since: str = "") -> str:
    """The number of cut rows; if it may be noise alone, a range from none to the most."""
    most, of = f"{cut['high']:,.0f}", "their rows" if whose else "all"
    whose += since
    if most == "0":
        return f"no {at_most}{whose} were over the contribution bound (with 95% confidence)"
    first = f"only the first {cut['each']:,d} such rows of each unit are in this number"
    sure = f"with 95% confidence; {first}"
    if cut["rows"] <= SURELY * cut["sd"]:
        part = f" (at most {cut['share_high']:.1%} of {of})" if "share_high" in cut else ""
        return f"0 to {most} {at_most}{whose}{part} {OVER} ({sure})"
    part = f" ({cut['share']:.1%} of {of})" if "share" in cut else ""
    told = f"about {cut['rows']:,.0f} {about}{whose}{part} {OVER}"
    return f"{told} (a noisy estimate; at most {most} {sure})"


def cut_between(before: Facts, cut: Facts) -> Facts:
    """The rows that were cut between two releases of a window, as far as both releases tell.

    The most is the most that was cut by the later one, less the rows surely cut by the earlier one.
    Their share is told only if the rounded shares of both tell how many rows came.

    >>> known = {"rows": 0, "sd": 4.0, "high": 20.0, "each": 5, "share_high": 0.02}
    >>> cut_between(known, {"rows": 980, "sd": 4.0, "high": 1000.0, "each": 5, "share_high": 0.5})
    {'rows': 980, 'sd': 8.0, 'high': 1000.0, 'each': 5, 'share': 0.98, 'share_high': 0.9804}
    """
    surely = max(before["rows"] - SURELY * before["sd"], 0)
    rows = max(cut["rows"] - before["rows"], 0)
    made = {
        "rows": rows, "sd": before["sd"] + cut["sd"],
        "high": max(cut["high"] - surely, rows), "each": cut["each"],
    }  # fmt: skip
    if not (before.get("share_high") and cut.get("share_high")):
        return made
    kept = max(_kept(cut) - _kept(before), 0)
    off = sum(HALF_DIGIT * one["high"] / one["share_high"] ** 2 for one in (before, cut))
    if made["high"] + kept < 10 * off:
        return made
    ends = {"share": rows, "share_high": made["high"]}
    return made | {name: round(end / (end + kept), 4) for name, end in ends.items() if end}


def _kept(cut: Facts) -> float:
    """The rows that were kept, from the part that was cut at most."""
    return float(cut["high"] * (1 / cut["share_high"] - 1))


def clamp_sentence(facts: Facts, names: Names = None) -> str | None:
    """The values that are clamped to others; None if all count as they are."""
    said = said_of_outputs(facts, "clamped", names)
    return f"{'; '.join(said)}; no interval covers that" if said else None


def unbounded_sentence(facts: Facts, names: Names = None) -> str | None:
    """The numbers that are missing since a look found no bounds for values, and the way out."""
    return "; ".join(said_of_outputs(facts, UNBOUNDED, names)) or None


def said_of_outputs(facts: Facts, about: str, names: Names = None) -> list[str]:
    """The sentences of a release about its numbers: each once, after the names of its numbers.

    >>> said_of_outputs({"outputs": [{"name": "n"}, {"name": "s", "clamped": "as 9"}]}, "clamped")
    ['s: as 9']
    """
    of: dict[str, list[str]] = {}
    outputs = [one for one in facts.get("outputs", ()) if names is None or one["name"] in names]
    for output in outputs:
        if about in output:
            of.setdefault(output[about], []).append(output["name"])
    return [
        text if len(outputs) == len(found) else f"{', '.join(found)}: {text}"
        for text, found in of.items()
    ]


def omitted_sentence(facts: Facts) -> str | None:
    """The rows that steps before the bounds may have left out of all numbers; None if none."""
    omitted = facts.get("omitted")
    return "; ".join(omitted) if omitted else None


def look_sentence(schema: pa.Schema) -> str | None:
    """The results of a look at the rows before the first release; None if there was none."""
    look = (read_facts(schema) or {}).get("look")
    return (
        f"settings were chosen by a private look at the rows: {'; '.join(look)}" if look else None
    )


def sentences(table: pa.Table) -> list[str]:
    """The sentences that belong with the numbers of a release wherever they are shown.

    For a release without a number they say why, and nothing about rows that numbers lack.
    """
    hidden, note = hidden_sentence(table), read_note(table.schema)
    said = missing(table.schema)
    if hidden is not None:
        facts = read_facts(table.schema) or {}
        beside = unbounded_sentence(facts), facts.get("guessed")
        said = [hidden, *(text for text in beside if text is not None)]
    return said if note is None else [*said, note]


def hidden_sentence(table: pa.Table) -> str | None:
    """The reason why a release of discovered groups shows none; None if it shows some.

    >>> facts = {FACTS: b'{"version": 1, "hidden": {"threshold": 40.5, "sd": 3}}'}
    >>> hidden_sentence(pa.schema([], facts).empty_table()).partition(";")[0]
    'no group is published: one appears when the estimate of its privacy units exceeds 40.5'
    """
    facts = read_facts(table.schema) or {}
    hidden = facts.get("hidden")
    if table.num_rows or hidden is None:
        return None
    if "threshold" not in hidden:
        return f"no group is published: 'explain' says how large a group must be; {MORE_SHOWN}"
    when = "when the estimate of its privacy units"
    if "lane" in hidden:  # coins may show it earlier
        when = f"at the latest when {_tested(facts, hidden['lane'])}"
    least = f"{hidden['threshold']:,.4g}"
    return f"no group is published: one appears {when} exceeds {least}; {MORE_SHOWN}"


def _tested(facts: Facts, place: int) -> str:
    """The total by which groups are shown, in words."""
    lane = dict(enumerate(facts.get("lanes", ()))).get(place, {})
    of = [f"'{output['name']}'" for output in facts.get("outputs", ()) if place in output["lanes"]]
    if lane.get("kind") == "rows":
        return "its noisy number of rows"
    if lane.get("kind") == "valid" and of:
        return f"its noisy number of rows that have a value for {of[0]}"
    return "its noisy total"


def missing(schema: pa.Schema, names: Names = None, since: pa.Schema | None = None) -> list[str]:
    """The parts that numbers or intervals of a release lack, for all numbers or those of `names`.

    These are rows over the bound (`since` an earlier release of the window, if given), clamped
    values, pairs beyond the limit of a join; also that bounds were chosen for rows of any shape.
    """
    facts = read_facts(schema) or {}
    before = None if since is None else read_facts(since)
    found = (
        unbounded_sentence(facts, names), cut_sentence(facts, names, before),
        clamp_sentence(facts, names), omitted_sentence(facts), facts.get("guessed"),
    )  # fmt: skip
    return [text for text in found if text is not None]


def metadata_file(release: Path) -> Path:
    """The file with the metadata of a release in a text file.

    >>> metadata_file(Path("window=0/trigger=000002.csv")).as_posix()
    'window=0/metadata=000002.json'
    """
    return release.with_name(f"metadata={release.stem.partition('=')[2]}.json")


def to_json(schema: pa.Schema, said: Sequence[str] = ()) -> bytes | None:
    """The metadata as a JSON document, or None; `said`: sentences for readers, which come first.

    >>> schema = noted(pa.table({"n": [1]}), "keys collide", b"{}").schema
    >>> from_json(pa.schema([("n", pa.int64())]), to_json(schema)).metadata == schema.metadata
    True
    """
    known = {name.decode(): text for name, text in (schema.metadata or {}).items()}
    facts, note = FACTS.decode(), NOTE.decode()
    told = (facts, TIME.decode())
    parts: dict[str, Any] = {name: json.loads(known[name]) for name in told if name in known}
    if note in known:
        parts[note] = known[note].decode()
    beginning = {SAID: list(said)} if said else {}
    return (json.dumps(beginning | parts, indent=1) + "\n").encode() if parts else None


def from_json(schema: pa.Schema, text: bytes) -> pa.Schema:
    """The schema with the metadata of a document of `to_json`."""
    parts = json.loads(text)
    return schema.with_metadata(
        {
            name: part if isinstance(part, str) else compact(part)
            for name, part in parts.items()
            if name != SAID
        }
    )


# ---- files of releases
#
# Such a file has the rows of releases, one release after the other. The metadata of the file holds
# that of all releases, with common parts only once. `PACKED` holds the number of rows of every
# release; for each name of metadata, the beginning and the end that its texts share and the rest of
# each; and the notes of columns, which a Parquet schema would hold at greater length.

PACKED = b"streamveil.releases"  # in the metadata of a file
NAME = re.compile(r"trigger=(\d+)(?:-(\d+))?\.(?:parquet|csv|json)")


def packed(releases: Sequence[pa.Table]) -> tuple[pa.Table, bytes]:
    """The rows of releases with the same columns, and their packed metadata.

    >>> first, second = (pa.table({"n": [n]}).replace_schema_metadata({"said": f"of {n}"})
    ...                  for n in (1, 2))
    >>> table, told = packed([first, second])
    >>> table["n"].to_pylist(), told
    ([1, 2], b'{"rows":[1,1],"metadata":{"said":["of ","",["1","2"]]}}')
    """
    plain = [table.replace_schema_metadata(None) for table in releases]
    whole, schema = pa.concat_tables(plain).combine_chunks(), plain[0].schema
    said = [table.schema.metadata or {} for table in releases]
    told: dict[str, Any] = {
        "rows": [table.num_rows for table in releases],
        "metadata": {
            name.decode(): shared([one[name].decode() for one in said]) for name in said[0]
        },
    }
    notes = [[place, texts(field.metadata)] for place, field in enumerate(schema) if field.metadata]
    if notes:
        told["columns"] = notes
        bare = pa.schema([field.remove_metadata() for field in schema])
        whole = pa.Table.from_arrays(whole.columns, schema=bare)
    return whole, compact(told).encode()


def texts(metadata: dict[bytes, bytes]) -> dict[str, str]:
    """Metadata as text."""
    return {name.decode(): text.decode() for name, text in metadata.items()}


def unpacked(table: pa.Table, told: bytes) -> list[pa.Table]:
    """The inverse of `packed`.

    >>> one = pa.table({"n": [1]}).replace_schema_metadata({"said": "much"})
    >>> unpacked(*packed([one, one])) == [one, one]
    True
    """
    parts: dict[str, Any] = json.loads(told)
    fields, found, start = list(table.schema), list[pa.Table](), 0
    for place, notes in parts.get("columns", ()):  # older files have them in their schema
        fields[place] = fields[place].with_metadata(notes)
    table = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    for turn, rows in enumerate(parts["rows"]):
        said = {
            name: begin + rest[turn] + end for name, (begin, end, rest) in parts["metadata"].items()
        }
        found.append(table.slice(start, rows).replace_schema_metadata(said or None))
        start += rows
    return found


def read_parquet(path: Path) -> list[pa.Table]:
    """The releases in a Parquet file."""
    with pq.ParquetFile(path) as file:
        told = (file.metadata.metadata or {}).get(PACKED)
        table = file.read()
    return [table] if told is None else unpacked(table, told)


def read_schema(path: Path) -> pa.Schema:
    """The schema of the first release in a Parquet file."""
    with pq.ParquetFile(path) as file:
        told, schema = (file.metadata.metadata or {}).get(PACKED), file.schema_arrow
    return schema if told is None else unpacked(schema.empty_table(), told)[0].schema


def same_columns(first: pa.Table, second: pa.Table) -> bool:
    """Whether two releases can be in one file: same columns, with the same notes."""
    names = [set(table.schema.metadata or {}) for table in (first, second)]
    plain = [table.schema.remove_metadata() for table in (first, second)]
    return names[0] == names[1] and plain[0].equals(plain[1], check_metadata=True)


def name_of(first: int, *rest: int) -> str:
    """The name of a file of releases, by their triggers.

    >>> name_of(3), name_of(3, 4, 5)
    ('trigger=000003', 'trigger=000003-000005')
    """
    return f"trigger={first:06d}" + (f"-{rest[-1]:06d}" if rest else "")


def triggers_in(name: str) -> range:
    """The triggers of the releases in a file, by its name; empty for other files.

    >>> triggers_in("trigger=000003-000005.parquet"), triggers_in("trigger=000003.csv")
    (range(3, 6), range(3, 4))
    """
    found = NAME.fullmatch(name)
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)


def shared(texts: list[str]) -> tuple[str, str, list[str]]:
    """The beginning and the end that texts share, and the rest of each."""
    begin = beginning(texts)
    rests = [text[len(begin) :] for text in texts]
    end = beginning([rest[::-1] for rest in rests])[::-1]
    return begin, end, [rest[: len(rest) - len(end)] for rest in rests]


def beginning(texts: list[str]) -> str:
    """The common beginning of all texts: that of the first and the last in their order."""
    first, last = min(texts), max(texts)
    same = (
        place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other
    )
    return first[: next(same, min(len(first), len(last)))]
