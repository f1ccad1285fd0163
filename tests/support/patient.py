"""The product with other patience than in production, for tests that are about something else."""

import pytest

from codeexec_api.code_rules import Inquiry
from codeexec_operator.adapters import code_reader
from executor_client.model import code_reading
from executor_client.testing.transport import FakeTransport
from executor_client.transport import outage


def lasts_out_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake cluster's client asks again without pauses, as often as a real cluster's. By itself it asks once."""
    retries = outage.Retries()
    retries.answered = True
    monkeypatch.setattr(outage, "_RECONNECT_SECONDS", 0)
    monkeypatch.setattr(FakeTransport, "patiently", lambda _, ask, seconds=None: retries.patiently(ask, seconds))


def unnice(command: tuple[str, ...]) -> tuple[str, ...]:
    """The same Python script, which can't lower its own priority: beside busy processes it would get no CPU."""
    *python, script = command
    run = f"import os; os.nice = lambda _: 0; exec(compile(open({script!r}).read(), {script!r}, 'exec'))"
    return (*python, "-c", run)


@pytest.fixture
def reading_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that reads code has the priority of the test, and as much time as it needs."""
    command = unnice(Inquiry.command())
    monkeypatch.setattr(Inquiry, "command", staticmethod(lambda: command))
    monkeypatch.setattr(code_reader, "WALL_SECONDS", 100)
    monkeypatch.setattr(code_reading, "WALL_SECONDS", 100)
