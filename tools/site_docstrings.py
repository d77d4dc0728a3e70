"""How docstrings of this project become pages: an extension of Griffe for `mkdocs.yml`."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object

LABEL = re.compile(
    r"^(Algorithm|Protects|Guarantee|Proof|Error|Memory|Numerics|Cost|Time): ", re.MULTILINE
)

REFERRED = re.compile(r"(?:See|As) `(\w+)(?:\.(\w+))?`[.;:]?\s*")


class Docstrings(Extension):
    """Fences doctests, sets labelled sentences apart, and reads the comment behind a field.

    Where a method refers to that of a protocol, the reference says what is said there.
    """

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """See `Extension`."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """See `Extension`."""
        self.on_object(obj=pkg)
        known = {name: text for name, text in methods(pkg)}
        told = {name: text.value for name, text in known.items()}
        for name, docstring in known.items():
            docstring.value = told_whole(docstring.value, name.partition(".")[2], told)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """See `Extension`."""
        if attr.docstring is None and attr.lines:
            said = comment("\n".join(attr.lines))
            attr.docstring = Docstring(said, parent=attr) if said else None


def methods(parent: Object) -> Iterator[tuple[str, Docstring]]:
    """The docstrings of all methods below a package or class, by their names within the class."""
    for one in parent.members.values():
        if isinstance(one, Function | Attribute) and one.docstring and isinstance(parent, Class):
            yield f"{parent.name}.{one.name}", one.docstring
        elif isinstance(one, Module | Class):
            yield from methods(one)


def told_whole(text: str, method: str, known: Mapping[str, str]) -> str:
    r"""A docstring that refers to the same method of a protocol, with what is said there.

    >>> known = {"Queries.label": "A short name.\n\nArgs:\n    index: its number, from 0."}
    >>> print(told_whole("See `Queries`. It is public.", "label", known))
    A short name.
    <BLANKLINE>
    It is public.
    <BLANKLINE>
    Args:
        index: its number, from 0.
    """
    found = REFERRED.match(text)
    whole = known.get(f"{found[1]}.{found[2] or method}") if found else None
    if found is None or whole is None:
        return text
    first, _, rest = whole.partition("\n\n")
    more = text[found.end() :]
    return "\n\n".join(part for part in (first, more[:1].upper() + more[1:], rest) if part)


def to_markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> to_markdown(">>> 1").split()
    ['```python', '>>>', '1', '```']
    """
    parts = re.split(r"(?m)(^>>> (?:.+\n?)+)", text)
    prose, code = parts[::2], parts[1::2]
    prose = [LABEL.sub(r"\n**\1.** ", part) for part in prose]
    fenced = [f"```python\n{part.rstrip()}\n```\n" for part in code]
    return "".join(one + two for one, two in zip(prose, [*fenced, ""], strict=True)).rstrip()


def comment(source: str) -> str:
    """The comment on a line of code.

    >>> comment("horizon: int  # steps the guarantee covers")
    'steps the guarantee covers'
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    try:
        found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, IndentationError):
        return ""
    return "" if not found or "type:" in found[0] else found[0].lstrip("# ")
