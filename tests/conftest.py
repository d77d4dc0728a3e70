"""One setting for every property test: the same examples in every run, fresh ones on request.

`HYPOTHESIS_PROFILE=nightly make all` draws new examples and many more of them; a failure it finds
is pinned beside its test as an @example.
"""

import os

from hypothesis import HealthCheck, settings

COMPILING = [HealthCheck.too_slow, HealthCheck.data_too_large]  # a kernel compiles on first use
settings.register_profile(
    "ci", derandomize=True, database=None, deadline=None, suppress_health_check=COMPILING
)
settings.register_profile(
    "nightly", max_examples=4000, deadline=None, suppress_health_check=COMPILING, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
