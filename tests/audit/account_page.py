"""The page of the exact account, docs/account.md, from `benchmarks/results/account.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPARK = Path(__file__).parents[2] / "benchmarks" / "results" / "spark_releases.json"

TITLES = {  # of rooms
    "group-by": "group-bys",
    "job": "jobs over raw rows, the whole grammar of SQL",
    "look": "looks at the rows",
    "table": "changing tables and questions to them",
    "rounds": "the preset dp-sqlp",
    "sketch": "sketches",
    "library": "the library's mechanisms",
    "grid": "counters, comparisons and partitions: every short stream",
    "ledger": "ledgers, by their rules",
}
LIBRARY = ("library", "grid", "ledger")  # rooms whose pairs are not of queries


def rooms_tried(campaigns: list[dict[str, Any]]) -> dict[str, int]:
    """Pairs by room."""
    found = dict.fromkeys(TITLES, 0)
    for one in campaigns:
        for room, count in one["pairs"].items():
            found[room] += count
    return found


def counted(campaigns: list[dict[str, Any]]) -> tuple[int, int]:
    """Pairs of queries, and of the library's mechanisms and ledgers."""
    tried = rooms_tried(campaigns)
    library = sum(tried[room] for room in LIBRARY)
    return sum(tried.values()) - library, library


def newest(campaigns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the code of the last campaign."""
    code = campaigns[-1].get("digest")
    return [one for one in campaigns if one.get("digest") == code and code]


def of_spark(runs: list[dict[str, Any]]) -> list[str]:
    """What `tests.audit.spark_releases` compared."""
    total = {
        name: sum(one[name] for one in runs) for name in ("jobs", "silent", "releases", "rows")
    }
    table = [
        f"| {one['digest']} ({one['commit']}) | {one['seed']} | {one['jobs']:,} |"
        f" {one['releases']:,} | {one['rows']:,} | {len(one['differ'])} |"
        for one in runs
    ]
    return [
        "## Spark",
        f"{total['jobs']:,} generated jobs of the grammar that Spark takes ran on both engines,"
        f" each with a secret of its own, and released {total['rows']:,} rows in"
        f" {total['releases']:,} releases ({total['silent']:,} jobs published no row);"
        f" {sum(len(one['differ']) for one in runs)} jobs differ in a bit."
        " What is released is a function of the rows and the secret alone, so engines that give the"
        " same function have the same law on neighbours: what the account says of the embedded"
        " engine holds on Spark. Of groups that stay hidden only the decisions of coins are"
        " compared (`python -m tests.audit.spark_releases`).",
        "\n".join([
            "| code | seed | jobs | releases | rows | jobs that differ |",
            "|---|---|--:|--:|--:|--:|", *table,
        ]),
    ]  # fmt: skip


def render(campaigns: list[dict[str, Any]]) -> str:
    """The page."""
    last, violations = newest(campaigns), sum(len(one["violations"]) for one in campaigns)
    queries, others = counted(last)
    table = [
        "| code | seed | of queries | of the library | claims exceeded |",
        "|---|---|--:|--:|--:|",
    ]
    for one in campaigns:
        code = f"{one['digest']} ({one['commit']})" if "digest" in one else f"core {one['code']}"
        of_queries, of_library = counted([one])
        table.append(f"| {code} | {one['seed']} | {of_queries:,} | {of_library:,} |"
                     f" {len(one['violations'])} |")  # fmt: skip
    lines = [
        "# How tight the claims are",
        "You see how tight the privacy claims are: how much of the claimed loss really occurs, on"
        " generated queries and pairs of neighbouring inputs.",
        "The exact account computes what one unit really loses and divides it by what is claimed"
        " ([how it works](review-mechanisms.md)). The quotient is the tightness. At 1 the claim has"
        " no slack; above 1 the claim is false.",
        "`python -m tests.audit.campaign` measures this and writes the page from"
        " `benchmarks/results/account.json`. A version of the code is named by a digest of the"
        " source files that decide what is released, and by its commit. In the first campaigns it"
        " was named by git's hash of the core's folder.",
    ]
    if last:
        refused = sum(sum(one.get("refused", {}).values()) for one in last)
        draws = sum(one.get("draws", 0) for one in last)
        lines.append(
            f"**On the newest code, {last[-1]['digest']}: {queries:,} pairs of neighbours for"
            f" queries and {others:,} for the library's mechanisms. Claims exceeded:"
            f" {sum(len(one['violations']) for one in last)}.**"
        )
        if draws:
            lines[-1] += f" The compiler refused {refused:,} of {draws:,} generated queries."
    lines += [
        f"All campaigns together: {sum(counted(campaigns)):,} pairs, claims exceeded:"
        f" {violations}.",
        "\n".join(table),
        *([in_words(campaigns)] if violations else []),
        "The tables below give the tightness of each mechanism on the newest code, or on earlier"
        " code (marked) if the newest campaign did not try it."
        if last else "The tables below are of the campaign that tried the mechanism most.",
    ]  # fmt: skip
    for room, title in TITLES.items():
        rows = [
            f"| {name} | {pairs:,} | {median:.3f} | {worst:.3f} |"
            for name, pairs, median, worst in seen_in(campaigns, last, room)
        ]
        if not rows:
            continue
        tried = sum(one["pairs"].get(room, 0) for one in last)
        head = ["| mechanism | pairs | median | worst |", "|---|--:|--:|--:|"]
        lines += [f"## {title[0].upper()}{title[1:]}",
                  f"{tried:,} pairs on the newest code.", "\n".join(head + rows)]  # fmt: skip
    if SPARK.exists():
        lines += of_spark(json.loads(SPARK.read_text()))
    return "\n\n".join(lines) + "\n"


def last_of(broken: Any) -> str:
    """What does not hold, without the query in which it does not."""
    return broken if isinstance(broken, str) or not broken else last_of(broken[-1])


def in_words(campaigns: list[dict[str, Any]]) -> str:
    """What was found wrong, and the commit that mended it."""
    found = [
        f"on {one['digest']}, seed {wrong['seed']} ({TITLES[wrong['room']]}):"
        f" {last_of(wrong['broken'])}"
        + (f"; fixed in {wrong['mended']}" if "mended" in wrong else "")
        for one in campaigns
        for wrong in one["violations"]
    ]
    return (
        "Faults found: " + "; ".join(found) + ". The changelog describes each fault of a guarantee"
        " and names its test."
    )


def seen_in(
    campaigns: list[dict[str, Any]], last: list[dict[str, Any]], room: str
) -> Iterator[tuple[str, int, float, float]]:
    """(mechanism, pairs, median, worst); the median is of the campaign that tried it most."""
    new = [one["tightness"].get(room, {}) for one in last]
    old = [one["tightness"].get(room, {}) for one in campaigns if one not in last]
    known = {name for parts in new for name in parts}
    for name in sorted({name for parts in (*new, *old) for name in parts}):
        some = [parts[name] for parts in (new if name in known else old) if name in parts]
        most = max(some, key=lambda one: one["pairs"])
        label = name if name in known or not last else f"{name} (earlier code)"
        yield label, sum(one["pairs"] for one in some), most["median"], max(
            one["worst"] for one in some)  # fmt: skip
