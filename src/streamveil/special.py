"""The compiled functions of `scipy.special`, without what scipy imports beside them.

`import scipy.special` also loads numpy's tests and Fortran tools and parses pages of documentation,
0.15 s of CPU that a first answer would wait for. The functions themselves lie in one module of it,
which needs none of that. They are the same objects either way.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

PACKAGE = "scipy.special"


def _functions() -> Any:
    """The module of the compiled functions; the whole package where scipy is built otherwise."""
    found = find_spec(PACKAGE)
    if PACKAGE not in sys.modules and found is not None:
        sys.modules[PACKAGE] = module_from_spec(found)  # the folder, whose own code is not run
        try:
            return import_module(f"{PACKAGE}._ufuncs")
        except ImportError:
            pass
        finally:
            del sys.modules[PACKAGE]
    return import_module(PACKAGE)


_found = _functions()
bdtrc: Any = _found.bdtrc
erf: Any = _found.erf
erfc: Any = _found.erfc
erfcx: Any = _found.erfcx
gammainc: Any = _found.gammainc
gammaincinv: Any = _found.gammaincinv
log_ndtr: Any = _found.log_ndtr
ndtr: Any = _found.ndtr
ndtri: Any = _found.ndtri
ndtri_exp: Any = _found.ndtri_exp
