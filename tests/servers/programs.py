"""Programs that tests start where the environment names them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def build(folder: Path, module: str) -> None:
    """Puts a program into a folder, from its Go module."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "install", module], check=True, env={**os.environ, "GOBIN": str(folder.absolute())}
    )


def program(name: str) -> str | None:
    """The program that a variable names, if it is there."""
    named = os.environ.get(name)
    return named if named and Path(named).exists() else None
