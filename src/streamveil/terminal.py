"""The only way to a terminal: names may hold any characters, and a terminal obeys some of them.

Groups come from other people's rows. A terminal takes ESC and the like as commands (to move, to
rewrite lines above, to answer into the shell), and marks of direction reverse the text. Only this
module opens a console: ruff refuses `rich.console.Console` and `click.echo` elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

import pyarrow as pa
from rich.console import (
    Console,  # noqa: TID251  (the one place)
    ConsoleOptions,
    RenderableType,
)
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from streamveil.display import cells_of, columns_of, heads_of, rows_of
from streamveil.errors import visible, visible_lines


class Terminal(Console):
    """A console to which no text gives commands, whatever the layout.

    Texts are spelled out before they are measured, and again as they leave, wherever they come
    from; the console's own output (colours, the moves of a progress line) is not text.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, emoji=False, **options)  # ':x:' is a name as well

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console.render_str`."""
        return super().render_str(visible_lines(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See `Console.render`."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=visible_lines(segment.text))


def label(name: str) -> str:
    r"""A name for a title, a cell or the head of a column: one line without markup.

    >>> label("[bold]\x1b[2J\n")
    '\\[bold]\\x1b[2J\\n'
    """
    return escape(visible(name))


def table_of(rows: pa.Table, title: str, most: int) -> RenderableType:
    """The first rows of an answer; each interval has one column, facts for programs have none."""
    from rich.table import Table

    columns, numbers = columns_of(rows.column_names)
    shown = Table(title=label(title))
    for head, is_figure in heads_of(columns, numbers):
        shown.add_column(label(head), justify="right" if is_figure else "left")
    for row in rows_of(rows.slice(0, most)):
        shown.add_row(*map(label, cells_of(row, columns, numbers)))  # a key may look like markup
    return shown


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Prints lines of plain text, unless the stream was closed before the process began."""
    stream: TextIO | None = sys.stderr if err else sys.stdout
    if stream is None:
        return
    stream.write(visible_lines(str(text)) + "\n" * nl)
    stream.flush()
