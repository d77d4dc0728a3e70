"""What pages of the site take from the code when it is built: errors, commands, proofs.

A line `<!-- from the code: errors -->` in a page becomes what `errors()` says. Nothing of it is
kept in the repository, so it cannot be out of date.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # mkdocs loads this file by its path
from tools import site_changing, site_depth, site_figures, site_performance, site_results

SOURCE = Path(__file__).parents[1] / "src" / "streamveil"
MARK = re.compile(r"^<!-- from the code: (\w+) -->$", re.M)
ROOMS = {  # where an error comes from, in the words of a user
    "sql": "Reading SQL", "api": "Building a query in Python", "plan": "Checking a query",
    "expressions": "Expressions", "compiler": "Choosing mechanisms", "advise": "Advice",
    "connectors": "Sources and sinks", "engines": "Spark", "runtime": "Running a job",
    "results": "Reading answers", "accounts": "Ledgers", "commands": "The command line",
    "cli": "The command line", "dashboard": "The dashboard", "calendars": "Calendars",
    "dynamic": "Changing tables", "changing_tables": "Changing tables",
    "sketches": "Sketches", "audit": "Audits", "core": "Budgets and noise",
    "counters": "Counters", "linear": "Linear queries", "dataflow": "Running a job",
    "demo": "The demo",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """One place that raises."""

    kind: str  # the class
    room: str
    says: str
    fix: str


def text_of(node: ast.expr) -> str | None:
    """The text that an expression makes, with <names> for what is filled in; None if unknown."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "<...>" for part in parts)
        case ast.FormattedValue(value=value):
            return f"<{named(value)}>"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left) or "<...>") + (text_of(right) or "<...>")
    return None


def named(value: ast.expr) -> str:
    """A short name for what is filled into a message."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="len")):
            return "number"
        case ast.Call(func=ast.Name(id="nearest")):
            return "did you mean"
        case ast.Call(args=[ast.Name(id=name), *_]):
            return name
    return "..."


def raised(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Every `raise Kind(text)` of a module, and every block whose errors are told in words."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Raise(exc=ast.Call(func=ast.Name(id="MissingExtraError"), args=[what, extra]))
                | ast.Call(func=ast.Name(id="requires_extra"), args=[what, extra])
            ) if (needed := text_of(extra)) is not None:
                fix = f"pip install 'streamveil[{needed}]'"
                says = f"{text_of(what)} needs the extra '{needed}'"
                yield "MissingExtraError", f"{says}.\n  to fix  {fix}"
            case ast.Raise(exc=ast.Call(func=ast.Name(id=kind), args=[text, *_])):
                yield kind, text_of(text)
            case (
                ast.Call(func=ast.Name(id="in_words"), args=[_, what, way, *_])
                | ast.Call(func=ast.Attribute(attr="connection"), args=[what, way])
            ) if (said := text_of(what)) is not None:
                yield "SourceError", f"{said}: <why>.\n  to fix  {text_of(way)}"


@cache
def all_errors() -> list[Told]:
    """Every message of an error of this package that is written where it is raised."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for kind, text in raised(ast.parse(path.read_text())):
            if kind in KINDS and text is not None and re.search(r"[a-z]{3}", text):
                says, _, fix = text.partition("\n  to fix  ")
                says, fix = (" ".join(part.split()) for part in (says, fix))
                found.add(Told(kind, ROOMS.get(room, "Anywhere"), says, fix))
    return sorted(found, key=lambda one: (one.room, one.says))


KINDS = {  # class: exit code of the command line
    "PlanError": 2, "BudgetError": 3, "StoreError": 4, "SourceError": 5, "MissingExtraError": 1,
    "HorizonError": 1, "WitnessError": 1, "ReusedNoiseError": 1,
    "UncopiedNoiseError": 1,
}  # fmt: skip


def cell(text: str) -> str:
    """Text that a table of Markdown shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")


@cache
def errors() -> str:
    """A table of messages and fixes for each class and each place it comes from."""
    tables: dict[str, dict[str, list[Told]]] = defaultdict(lambda: defaultdict(list))
    for one in all_errors():
        tables[one.kind][one.room].append(one)
    lines = []
    for kind in (kind for kind in KINDS if kind in tables):
        lines += [f"## Messages of {kind}", ""]
        for room, told in tables[kind].items():
            lines += [f"### {kind}: {room}", "", "| it says | to fix |", "|---|---|"]
            lines += [f"| {cell(one.says)} | {cell(one.fix)} |" for one in told]
            lines += [""]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments, options and example."""
    from streamveil.cli import app

    return "\n".join(told_commands(app, "streamveil"))


def told_commands(command: click.Command, name: str) -> Iterator[str]:
    """A command, or those of a group, one after the other."""
    if inner_commands := getattr(command, "commands", None):
        for part, inner in sorted(inner_commands.items()):
            yield from told_commands(inner, f"{name} {part}")
        return
    yield from (f"## {name}", "", plain(command.help or ""), "")
    taken = [one for one in command.params if one.name != "help"]
    usage = " ".join((one.name or "").upper() for one in taken if is_argument(one))
    yield from ("```text", f"{name} {usage} [options]".replace("  ", " "), "```", "")
    yield from ("| argument or option | what it is | default |", "|---|---|---|")
    for one in taken:
        default = "" if one.default in (None, False, ()) or callable(one.default) else one.default
        words = cell(plain(getattr(one, "help", None) or ""))
        names = [(one.name or "").upper()] if is_argument(one) else one.opts
        yield f"| {', '.join(f'`{opt}`' for opt in names)} | {words} | {cell(str(default))} |"
    yield ""
    if command.epilog:
        yield from (f"`{command.epilog.removeprefix('Example: ')}`", "")


def is_argument(parameter: click.Parameter) -> bool:
    """Whether a parameter is given by its place."""
    return parameter.param_type_name == "argument"


def plain(text: str) -> str:
    """The first paragraph and all others, without the breaks of the source."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


MADE: dict[str, Callable[[], str]] = {
    "errors": errors, "commands": commands, "dp_sqlp": site_results.dp_sqlp,
    "lazysketch": site_results.lazysketch, "dynamic": site_results.dynamic,
    "peers_once": partial(site_results.peers, "once"),
    "peers_weekly": partial(site_results.peers, "weekly"),
    "peer_sketches": site_results.peer_sketches, "growing": site_results.growing,
    "classifiers": site_results.classifiers,
    "throughput": site_performance.throughput, "looked": site_performance.looked,
    "stages": site_performance.stages, "growth": site_performance.growth,
    "scale": site_performance.scale, "sources": site_performance.sources,
    "dp_plain": partial(site_depth.dp_rows, ["plain"], 10_000_000),
    "dp_clumpy": partial(site_depth.dp_rows, ["clumpy"], 10_000_000),
    "dp_unseen": partial(site_depth.dp_rows, ["other", "bursty"], 1_000_000),
    "dp_posts": partial(site_depth.dp_rows, ["reddit"], 1_430_000),
    "dp_reduced": partial(site_depth.dp_rows, ["plain", "clumpy"], 300_000),
    "dp_latency": site_depth.dp_latency, "growing_sizes": site_depth.growing_sizes,
    "dp_workers": site_depth.dp_workers, "growing_powers": site_depth.growing_powers,
    "growing_improver": partial(site_depth.growing_worst, "improver", "records at the start"),
    "growing_mwem": partial(site_depth.growing_worst, "static MWEM", "records"),
    "spark": site_depth.spark, "spark_keys": site_depth.spark_keys,
    "sketch_speed": site_depth.sketch_speed, "sketch_containers": site_depth.sketch_containers,
    **{f"changing_{made.__name__}": made for made in site_changing.ALL},
    "counter_errors": site_figures.counter_errors,
    "wakeup": site_performance.wakeup, "replay": site_performance.replay,
}  # fmt: skip


def on_config(config: dict[str, Any], **_: object) -> dict[str, Any]:
    """What mkdocs calls first: every page says at its foot which version it is of."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    config["copyright"] = f"{project['name']} {project['version']}"
    return config


EXAMPLE = (
    "`daily.sql` is [the example of all recipes](index.md#the-rows-and-the-query-of-all-recipes),"
    " and `daily.veil` is its state. Put your own query in their place."
)


def filled(markdown: str) -> str:
    """A page with what it takes from the code."""
    return MARK.sub(lambda found: MADE[found[1]](), markdown)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """What mkdocs calls with the text of each page: recipes say where their query is from."""
    made = filled(markdown)
    if page.file.src_uri.startswith("how-to/") and "daily." in made and "-- daily.sql" not in made:
        title, says, rest = made.split("\n\n", 2)
        made = "\n\n".join([title, says, EXAMPLE, rest])
    return made


if __name__ == "__main__":
    print(errors(), commands(), sep="\n")  # noqa: T201  (the page)
