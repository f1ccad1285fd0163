"""A failing test of a cluster explains itself: what it made there, what became of that, and what the operator said.

Objects count as the test's if they came into being since it began, or if its failure names them.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from api_server import Failure, Object, failures
from kube import DEFAULT_SANDBOX, SANDBOX, Kube, summary

SYSTEM = "codeexec-system"
OPERATOR = "app.kubernetes.io/component=operator"
MOST_OBJECTS, MOST_LINES, MOST_CHARACTERS = 10, 120, 20_000
BOUND_SECONDS = 4.0
"""Of one call; a cluster that doesn't answer is no reason to wait."""

BEGAN = pytest.StashKey[float]()
TOLD = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and not item.stash.get(TOLD, False):
        item.stash[TOLD] = True
        began = int(item.stash.get(BEGAN, time.time()))  # the API server knows whole seconds
        for kube, namespaces in _clusters_of(item):
            report.sections += list(tell(kube, began, report.longreprtext, namespaces))
    return report


def given_to(item: pytest.Item) -> list[Any]:
    """What its fixtures gave to a test; if one gave several things, each of them."""
    arguments = getattr(item, "funcargs", {}).values()
    return [one for given in arguments for one in (given if isinstance(given, tuple) else (given,))]


def _clusters_of(item: pytest.Item) -> Iterator[tuple[Kube, Sequence[str]]]:
    """Those that it had an administrator of, or a kubeconfig, and their sandbox namespaces, if a stage names them."""
    admins = {}
    for one in given_to(item):
        if isinstance(admin := getattr(one, "admin", one), Kube):
            admins.setdefault(admin.kubeconfig, getattr(one, "namespaces", ()))
    for kubeconfig in admins or filter(None, [getattr(item, "funcargs", {}).get("kubeconfig")]):
        with suppress(Exception):
            yield Kube(kubeconfig, seconds=BOUND_SECONDS), admins.get(kubeconfig, ())


def tell(kube: Kube, began: float, failure: str = "", namespaces: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Title and text of each section. Nothing goes wrong here: what can't be had says so."""
    story = _Story(kube, began, failure, namespaces)
    parts: dict[str, Callable[[], str]] = {
        "records": story.records,
        "pods": story.pods,
        "nodes that take no pods": story.nodes,
        "events": story.events,
        "operator's log": story.operator_log,
        "API calls that failed": story.calls,
    }
    for title, part in parts.items():
        try:
            text = part()
        except (Exception, pytest.fail.Exception) as error:  # the second: the test's limit of time is over now
            text = f"not known: {error!r}"
        if text:
            yield f"cluster: {title} since the test began", text[-MOST_CHARACTERS:]


@contextmanager
def noting_calls_of_clients() -> Iterator[None]:
    """Calls of the client under test that fail are noted beside those of the test itself."""
    from kubernetes.aio.client import rest  # here: it costs tests without a cluster half a second

    ask = rest.RESTClientObject.request

    def note(method: str, url: str, said: str) -> None:
        failures.append(Failure(time.time(), f"{method} {url}", f"the client's {method} {url}: {said}"))

    async def request(self: Any, method: str, url: str, *arguments: Any, **how: Any) -> Any:
        try:
            answer = await ask(self, method, url, *arguments, **how)
        except Exception as error:
            note(method, url, repr(error))
            raise
        if answer.status >= 400:
            note(method, url, f"{answer.status} {answer.reason}")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest.RESTClientObject, "request", request)
        yield


class _Story:
    """What happened in the sandbox namespaces that the test may have used."""

    def __init__(self, kube: Kube, began: float, failure: str, namespaces: Sequence[str]) -> None:
        self._kube, self._began, self._failure = kube, began, failure
        self._names: set[str] = set()
        self._namespaces = dict.fromkeys((SANDBOX, DEFAULT_SANDBOX, *namespaces))

    def _ours(self, kind: str, namespace: str | None) -> Sequence[Object]:
        """The newest of them, as many as can be read."""
        found = [one for one in self._kube.list(kind, namespace) if self._is_ours(one["metadata"])]
        found.sort(key=lambda one: one["metadata"]["creationTimestamp"])
        self._names |= {one["metadata"]["name"] for one in found}
        return found[-MOST_OBJECTS:]

    def _is_ours(self, meta: Object) -> bool:
        return _time(meta["creationTimestamp"]) >= self._began or meta["name"] in self._failure

    def records(self) -> str:
        kinds = ("codeexecution", "codesession", "executionapproval", "sandboxpool")
        found = [one for namespace in self._namespaces for kind in kinds for one in self._ours(kind, namespace)]
        return "\n".join(f"{summary(one)}\n  {_age(one)}; spec: {_short(one['spec'], 300)}" for one in found)

    def pods(self) -> str:
        found = [one for one in self._ours("pod", None) if one["metadata"]["namespace"] != "kube-system"]
        return "\n".join(f"{one['metadata']['namespace']}: {_of_a_pod(one)}" for one in found)

    def nodes(self) -> str:
        found = [_of_a_node(one) for one in self._kube.list("node", None)]
        return "\n".join(line for line in found[:MOST_OBJECTS] if line)

    def events(self) -> str:
        found = [one for namespace in self._namespaces for one in self._kube.list("event", namespace)]
        lines = sorted((_when(one), _of_an_event(one)) for one in found if self._concerns(one))
        return "\n".join(f"{when} {words}" for when, words in lines[-MOST_LINES:])

    def _concerns(self, event: Object) -> bool:
        return event["involvedObject"].get("name") in self._names and _time(_when(event)) >= self._began

    def operator_log(self) -> str:
        since = datetime.fromtimestamp(self._began, UTC).isoformat().replace("+00:00", "Z")
        told = []
        for pod in self._kube.list("pod", SYSTEM, labels=OPERATOR):
            name = pod["metadata"]["name"]
            lines = self._kube.logs(SYSTEM, name, sinceTime=since).splitlines()
            told += [f"--- {name}", *[line[:1500] for line in lines if not _is_of_others(line)][-MOST_LINES:]]
        return "\n".join(told)

    def calls(self) -> str:
        lines = [f"{_clock(one.at)} {one.said}" for one in failures if one.at >= self._began]
        return "\n".join(line[:500] for line in lines[-MOST_LINES:])


def _is_of_others(line: str) -> bool:
    """A line about another worker's namespace."""
    named = f'"{DEFAULT_SANDBOX}-'
    return named in line and f'"{SANDBOX}"' not in line and f'"{SANDBOX}/' not in line


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _age(thing: Object) -> str:
    """By the clock of this machine, on which the API server is."""
    return f"created {time.time() - _time(thing['metadata']['creationTimestamp']):.0f} s ago"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _when(event: Object) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]


def _of_an_event(event: Object) -> str:
    about = event["involvedObject"]
    words = f"{event.get('type', '')} {event.get('reason', '')} {about['kind']}/{about.get('name', '')}"
    return f"{words}: {event.get('message', '')[:300]}"


def _of_a_node(node: Object) -> str:
    """Empty if the node takes pods. Taints of our own are left out: sandboxes tolerate them."""
    taints = [one for one in node["spec"].get("taints", ()) if not one["key"].startswith("codeexec.dev/")]
    conditions = node["status"].get("conditions", ())
    unready = [one for one in conditions if one["type"] == "Ready" and one["status"] != "True"]
    return f"{node['metadata']['name']}: {json.dumps({'taints': taints, 'not': unready})}" if taints or unready else ""


def _of_a_pod(pod: Object) -> str:
    """What doesn't say why a pod is as it is, is left out."""
    status: dict[str, Any] = pod.get("status", {})
    kept = {key: status[key] for key in ("phase", "reason", "message", "podIP") if key in status}
    kept["not"] = {
        one["type"]: f"{one.get('reason', '')} {one.get('message', '')}".strip()
        for one in status.get("conditions", [])
        if one["status"] != "True"
    }
    kept["containers"] = [
        {"name": one["name"], "restarts": one["restartCount"], **one.get("state", {})}
        for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    ]
    return summary({**pod, "status": kept}, 1200)


def _short(thing: Any, most: int) -> str:
    text = json.dumps(thing)
    return text if len(text) <= most else f"{text[:most]}…"


def tracebacks(log: str) -> list[str]:
    """Lines of an operator's log that tell of an error which nothing in the operator expects."""
    return [line for line in log.splitlines() if '"exc_info"' in line or line.startswith("Traceback")]
