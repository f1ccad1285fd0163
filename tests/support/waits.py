"""Waits for what becomes of an object, by watching it: they see every version, and say what they saw instead."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kube import SANDBOX, Event, Kube, Object, Wait

from codeexec_api.phases import SessionPhase

SECONDS = 100
"""Of a wait, unless it says another: more than the 60 s that the product gives a pod to start."""
TERMINAL = frozenset({"Denied", "Expired", "Succeeded", "Failed", "TimedOut", "Cancelled", "OutOfMemory", "Lost"})
"""Phases that an execution stays in."""
ENDS = {"CodeExecution": TERMINAL, "CodeSession": frozenset(one.value for one in SessionPhase if one.terminal)}
"""Of each kind that ends: nothing is waited for that comes after its end."""


def phase_of(record: Object) -> str:
    return record.get("status", {}).get("phase", "")


class Waits(Kube):
    """Waits have a name and a bound, and end at once when they can't be fulfilled any more."""

    def wait_until(
        self,
        what: str,
        kind: str,
        name: str,
        predicate: Callable[[Object], Any],
        seconds: float = SECONDS,
        namespace: str = SANDBOX,
    ) -> Object:
        """The first version of the object, from now on, of which the predicate is true.

        Fails at once when an execution or a session has ended.
        """
        wait = Wait(what, seconds)
        for event in itertools.chain.from_iterable(self.changes(kind, namespace, wait, fields=f"metadata.name={name}")):
            version = wait.see(event)
            if version is not None and predicate(version):
                return version
            _refuse_the_end(wait, event)
        raise wait.in_vain()

    def wait_until_all(
        self,
        what: str,
        kind: str,
        predicate: Callable[[list[Object]], Any],
        seconds: float = SECONDS,
        namespace: str | None = SANDBOX,
        *,
        labels: str = "",
        fields: str = "",
    ) -> list[Object]:
        """All objects of a kind, as soon as the predicate is true of them together; asked after each change."""
        wait = Wait(what, seconds)
        there: dict[str, Object] = {}
        for change in self.changes(kind, namespace, wait, labels=labels, fields=fields):
            for event in change:
                if wait.see(event) is None:
                    there.pop(event.object["metadata"]["uid"], None)
                else:
                    there[event.object["metadata"]["uid"]] = event.object
            if predicate(list(there.values())):
                return list(there.values())
        raise wait.in_vain()

    def wait_for_phase(self, name: str, *phases: str, seconds: float = SECONDS, namespace: str = SANDBOX) -> Object:
        """The record of an execution, once it is in one of these phases; fails at once when it ended in another."""
        what = f"{name} to become {' or '.join(phases)}"
        return self.wait_until(what, "codeexecution", name, lambda one: phase_of(one) in phases, seconds, namespace)

    @contextlib.contextmanager
    def following(self, kind: str, name: str, namespace: str = SANDBOX) -> Iterator["Following"]:
        """Sees every version from here on, also those that are over when the test asks for them.

        with admin.following("codeexecution", name) as record:
            admin.submit(name, code)
            record.wait_for_phase("Starting")
        """
        yield Following(self, kind, name, namespace)


def _refuse_the_end(wait: Wait, event: Event) -> None:
    kind, phase = event.object["kind"], phase_of(event.object)
    if kind not in ENDS:
        return
    if event.type == "DELETED":
        raise AssertionError(f"waited for {wait.what}, but it was deleted as {phase or 'new'}: {wait.seen()}")
    if phase in ENDS[kind]:
        status = event.object["status"]
        ended = f"{phase} ({status.get('reason', '')}): {status.get('message', '')}"
        raise AssertionError(f"waited for {wait.what}, but it ended as {ended}\n{wait.seen()}")


class Following:
    """The versions of one object since this was made: those that there were and those to come."""

    def __init__(self, kube: Kube, kind: str, name: str, namespace: str) -> None:
        self._kube, self._kind, self._name, self._namespace = kube, kind, name, namespace
        there, self._since = kube.look(kind, namespace, fields=f"metadata.name={name}")
        self._events = [Event("ADDED", one) for one in there]

    def _all(self, wait: Wait) -> Iterator[Event]:
        """From the first one on."""
        yield from list(self._events)
        where = {"fields": f"metadata.name={self._name}", "since": self._since}
        for change in self._kube.changes(self._kind, self._namespace, wait, **where):
            self._events += change
            self._since = change[-1].object["metadata"]["resourceVersion"]
            yield from change

    @property
    def versions(self) -> list[Object]:
        """All up to this moment."""
        now = self._kube.find(self._kind, self._name, self._namespace)
        if now is None and not self._events:
            return []
        wait = Wait(f"the versions of {self._kind} {self._name} up to now", SECONDS)
        for event in self._all(wait):
            version = wait.see(event)
            newest = event is self._events[-1]
            same = version and now and version["metadata"]["resourceVersion"] == now["metadata"]["resourceVersion"]
            if same or (newest and now is None and version is None):
                return [one.object for one in self._events if one.type != "DELETED"]
        raise wait.in_vain()

    @property
    def phases(self) -> list[str]:
        """Those it has gone through up to this moment, in order."""
        found = (phase_of(version) for version in self.versions)
        return [phase for phase, _ in itertools.groupby(found) if phase]

    def wait_until(self, what: str, predicate: Callable[[Object], Any], seconds: float = SECONDS) -> Object:
        """The first of all versions of which the predicate is true, be it over or to come.

        Fails at once when an execution or a session has ended.
        """
        wait = Wait(what, seconds)
        for event in self._all(wait):
            version = wait.see(event)
            if version is not None and predicate(version):
                return version
            _refuse_the_end(wait, event)
        raise wait.in_vain()

    def wait_for_phase(self, *phases: str, seconds: float = SECONDS) -> Object:
        """The first of all versions in one of these phases; fails at once when it ended in another."""
        what = f"{self._name} to become {' or '.join(phases)}"
        return self.wait_until(what, lambda one: phase_of(one) in phases, seconds)
