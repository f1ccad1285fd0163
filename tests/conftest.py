"""Settings that all layers of tests share; the factories are in `factories.py`."""

from hypothesis import settings

# Used by e2e, conformance and parity; they cost the other layers nothing.
pytest_plugins = ["cluster_fixtures", "conformance.plugin", "parity.plugin"]

# The same examples on every run, and no deadline: a busy machine is not a bug.
settings.register_profile("codeexec", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("codeexec")
