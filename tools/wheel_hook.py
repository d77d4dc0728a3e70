"""A wheel with compiled functions is for one kind of machine and one Python: its name says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    """Names the wheel by what is in it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build."""
        if version != "editable" and (Path(self.root) / "src/streamveil/_kernels").is_dir():
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
