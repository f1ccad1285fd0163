"""Settings that all tiers of tests share; the factories are in `support/factories.py`."""

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, Phase, settings

# They cost the tiers that don't use them nothing.
pytest_plugins = [
    "diagnostics",
    "patient",
    "cluster_fixtures",
    "release_fixtures",
    "conformance.plugin",
    "parity.plugin",
]

# The same examples on every run, and no deadline: a busy machine is not a bug.
settings.register_profile("codeexec", deadline=None, derandomize=True, max_examples=60)
# For `make mutants`: tests run again and again in one process, and a mutant that is found needs no smallest example.
settings.register_profile(
    "mutants",
    settings.get_profile("codeexec"),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.differing_executors],
)
settings.load_profile("codeexec")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Keep what was measured: xdist kills a worker that has not ended 10 s after its last test."""
    if measured := Coverage.current():
        measured.save()
