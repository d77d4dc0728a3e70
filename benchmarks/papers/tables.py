"""Results of experiments: rows of mean and spread, saved with what made them."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FIGURES, RESULTS = ROOT / "docs" / "figures", ROOT / "benchmarks" / "results"


@dataclass
class Table:
    """One result file: `<paper>_<name>.json`."""

    paper: str
    name: str
    config: dict
    rows: list = field(default_factory=list)

    def add(self, **row) -> None:
        self.rows.append(row)
        shown = {k: (f"{v:.4g}" if isinstance(v, float) else v) for k, v in row.items()}
        print("  ", shown, flush=True)

    def save(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()
        head = {"commit": commit, "python": platform.python_version(), "numpy": np.__version__}
        text = json.dumps({**head, "config": self.config, "rows": self.rows}, indent=1, default=str)
        path = RESULTS / f"{self.paper}_{self.name}.json"
        partial = path.with_name(f".{path.name}")
        partial.write_text(text + "\n")
        partial.replace(path)


def spread(values) -> dict:
    """Mean and standard deviation over seeds."""
    values = np.asarray(values, float)
    return {"mean": float(values.mean()), "sd": float(values.std(ddof=1)), "seeds": len(values)}


def named(experiments: Iterable[str], said: str | None) -> list[str]:
    """The experiments that the command line names; all, if it names none."""
    known = list(experiments)
    parser = argparse.ArgumentParser(
        description=said, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "experiments", nargs="*", metavar="NAME", help=", ".join(known) + "; default: all"
    )
    given = parser.parse_args().experiments
    if unknown := [name for name in given if name not in known]:
        parser.error(f"unknown experiment {unknown[0]}; known: {', '.join(known)}")
    return given or known
