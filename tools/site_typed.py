"""Numbers with units that stand typed in the pages: none of them may be a measurement.

python -m tools.site_typed lists what is neither made from a result file nor known here as a setting
or plain arithmetic. `site_figures` makes the former.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.site_figures import FIGURE, ROOT, pages

NUMBER = r"\d[\d.,]*(?:·10[⁰-⁹⁻]+)?"
UNIT = r"%|ns|µs|ms|s|(?:micro|milli)?seconds|bytes|[kKMG]B|times (?:as|too|the|more|less)"
TYPED = re.compile(rf"(?<![\w.`/-])({NUMBER}(?: (?:to|and) {NUMBER})? ?(?:{UNIT}))(?!\w)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
DATED = "decisions", "contributing"  # folders of notes that say when they were true
MADE = "account.md", "regret.md"  # written as a whole from result files
CONFIDENCE = "95%"
SETTINGS = {  # what was asked or chosen, sizes that the code fixes, and shares of these
    "comparison.md": ("24 KB",),
    "dp-sqlp.md": ("3%",),
    "dynamic-data.md": ("10%", "16 bytes"),
    "files.md": ("40 bytes",),
    "group-by.md": ("15%", "5%"),
    "how-to/choose-epsilon.md": ("5%",),
    "how-to/kubernetes.md": ("15 seconds",),
    "counters.md": ("1%",),
    "papers/growing-tables.md": ("16 times as",),
    "performance.md": ("3 bytes", "6 bytes", "16 bytes", "260 ns", "0.8 ms", "1.7 times as",
                       "1.25 times the"),
    "review.md": ("30 s",),
    "sketches.md": ("24 KB", "145 bytes", "10 bytes", "81 and 100%", "240 KB", "100 KB", "2 MB",
                    "2.6 MB", "200 bytes"),
    "spark.md": ("25 bytes",),
    "weaknesses.md": ("4 MB", "25%", "90%"),
}  # fmt: skip


def typed(text: str) -> Iterator[str]:
    """Numbers with a unit in the sentences of a page that no result file gives."""
    prose = CODE.sub("", FIGURE.sub("", text))
    yield from (found[1] for found in TYPED.finditer(prose) if found[1] != CONFIDENCE)


def unknown() -> dict[str, list[str]]:
    """The same in every page that speaks of today, without settings."""
    found = {}
    for page in pages():
        name = str(page.relative_to(ROOT)).removeprefix("docs/")
        if Path(name).parts[0] not in DATED and name not in MADE:
            known = SETTINGS.get(name, ())
            found[name] = [one for one in typed(page.read_text()) if one not in known]
    return {name: left for name, left in found.items() if left}


if __name__ == "__main__":
    for page, left in unknown().items():
        print(page, *left, sep="\n  ")  # noqa: T201  (the list)
