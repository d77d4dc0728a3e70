"""How docstrings of this project become pages: an extension of Griffe for `mkdocs.yml`."""

from __future__ import annotations

import io
import re
import tokenize
from typing import Any

from griffe import Attribute, Docstring, Extension, Module, Object

LABEL = re.compile(
    r"^(Algorithm|Protects|Guarantee|Proof|Error|Memory|Numerics|Cost|Time): ", re.MULTILINE
)


class Docstrings(Extension):
    """Fences doctests, sets labelled sentences apart, and reads the comment behind a field."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """See `Extension`."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """See `Extension`."""
        self.on_object(obj=pkg)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """See `Extension`."""
        if attr.docstring is None and attr.lines:
            said = comment("\n".join(attr.lines))
            attr.docstring = Docstring(said, parent=attr) if said else None


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
