"""One setting for every property test here: compiling a kernel is not a slow example."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "operators",
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
if settings.get_current_profile_name() == "default":
    settings.load_profile("operators")
