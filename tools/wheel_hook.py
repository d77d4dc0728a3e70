"""A wheel with compiled functions is for one kind of machine and one Python: its name says so.

Compiled functions are results of Numba, not libraries: they name no version of a system's library,
and what they call is found by Numba when it loads them. So on Linux a wheel is for what Numba's own
wheels are for, and an index takes it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    """Names the wheel by what is in it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build."""
        if version != "editable" and (Path(self.root) / "src/streamveil/_kernels").is_dir():
            build_data["pure_python"] = False
            if sys.platform == "linux":
                python = f"cp{sys.version_info.major}{sys.version_info.minor}"
                build_data["tag"] = f"{python}-{python}-manylinux_2_28_{platform.machine()}"
            else:
                build_data["infer_tag"] = True
