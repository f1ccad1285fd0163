"""What the API server accepts and refuses, and what it says."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from cluster_tools import ROOT, SANDBOX, Admin, a_name, a_session, an_approval, an_execution

DIGEST = "0" * 64
BLOCK = {"language": "python", "sha256": DIGEST, "sizeBytes": 1}
FILE = {"path": "data.csv", "sha256": DIGEST, "sizeBytes": 1}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
Thing = dict[str, Any]
Change = Callable[[Thing], None]


@pytest.mark.parametrize("path", sorted((ROOT / "crds" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_example_is_accepted(admin, path):
    for thing in yaml.safe_load_all(path.read_text()):
        assert _objection(admin, thing | {"metadata": thing["metadata"] | {"namespace": SANDBOX}}) == ""


def _set(path: str, value: object) -> Change:
    def change(thing: Thing) -> None:
        *parents, last = path.split(".")
        node: Any = thing
        for key in parents:
            node = node[int(key)] if key.isdigit() else node[key]
        if value is None:
            del node[last]
        else:
            node[last] = value

    return change


def _all(*changes: Change) -> Change:
    def change(thing: Thing) -> None:
        for one in changes:
            one(thing)

    return change


def _execution() -> Thing:
    return an_execution(a_name("contract"), [dict(BLOCK)])


def _session(**spec: object) -> Thing:
    return a_session(a_name("contract"), **spec)


def _objection(admin: Admin, thing: Thing) -> str:
    """What the API server says to a dry run; empty if it accepts."""
    return getattr(admin.try_create(thing, dry_run=True), "message", "")


IN_A_SESSION = _set("spec.sessionRef", {"name": "mine"})
NO_BLOCKS = _set("spec.blocks", [])
GOOD = {
    "one block": _all(),
    **{f"a block of {name}": _set("spec.blocks.0.language", name) for name in ("bash", "sh", "javascript", "pwsh")},
    "as many blocks and files as there may be": _all(
        _set("spec.blocks", [BLOCK] * 64), _set("spec.files", [FILE] * 64)
    ),
    "as much code as there may be": _set("spec.blocks", [{**BLOCK, "sizeBytes": 500_000}] * 2),
    "a file that fills all parts": _all(
        _set("spec.blocks.0.sizeBytes", 0),
        _set("spec.files", [{**FILE, "sizeBytes": 16_000_000}]),
        _set("spec.payloadRef.parts", 16),
    ),
    "all output that can be kept": _set("spec.limits", {"outputBytes": 16 << 20}),
    "files by pattern": _set("spec.artifacts", {"list": "All", "fetch": ["*.csv"] * 64}),
    "no artifacts": _set("spec.artifacts", {"list": "None"}),
    "as much code as may be sealed": _all(
        _set("spec.payloadRef", None),
        _set("spec.sealedPayload", {"keyName": "k", "data": "A" * 32_768}),
        _set("spec.blocks.0.sizeBytes", 16 * 1024),
    ),
    "a block in a session": IN_A_SESSION,
    "an upload": _all(IN_A_SESSION, NO_BLOCKS, _set("spec.files", [FILE])),
    "a download, which hands nothing in": _all(
        IN_A_SESSION, NO_BLOCKS, _set("spec.payloadRef", None), _set("spec.artifacts", {"fetch": ["report.pdf"]})
    ),
}
BAD = {
    "no spec": (_set("spec", None), "spec: Required value"),
    "no list of blocks": (_set("spec.blocks", None), "spec.blocks: Required value"),
    "no blocks outside a session": (NO_BLOCKS, "spec.blocks: Invalid value"),
    "files alone outside a session": (_all(NO_BLOCKS, _set("spec.files", [FILE])), "there must be a block, but in a"),
    "too many blocks": (_set("spec.blocks", [BLOCK] * 65), "spec.blocks: Too many: 65: must have at most 64 items"),
    "blocks that are no list": (_set("spec.blocks", "print(1)"), "spec.blocks"),
    "unknown language": (_set("spec.blocks.0.language", "perl"), "spec.blocks[0].language"),
    "language in another case": (_set("spec.blocks.0.language", "Python"), "spec.blocks[0].language"),
    "no language": (_set("spec.blocks.0.language", None), "spec.blocks[0].language"),
    "digest too short": (_set("spec.blocks.0.sha256", "abc"), "spec.blocks[0].sha256"),
    "digest in capitals": (_set("spec.blocks.0.sha256", "A" * 64), "spec.blocks[0].sha256"),
    "negative size": (_set("spec.blocks.0.sizeBytes", -1), "spec.blocks[0].sizeBytes"),
    "blocks too large together": (
        _set("spec.blocks", [{**BLOCK, "sizeBytes": 600_000}] * 2),
        "spec.blocks: Invalid value",
    ),
    "absolute file name": (_set("spec.blocks.0.filename", "/etc/passwd"), "spec.blocks[0].filename"),
    "file name that climbs": (_set("spec.blocks.0.filename", "a/../../b"), "spec.blocks[0].filename"),
    "file name with a control character": (_set("spec.blocks.0.filename", "a\nb"), "spec.blocks[0].filename"),
    "file outside the workspace": (_set("spec.files", [{**FILE, "path": "../x"}]), "spec.files[0].path"),
    "too many files": (_set("spec.files", [FILE] * 65), "spec.files: Too many: 65: must have at most 64 items"),
    "an empty list of files": (_set("spec.files", []), "spec.files"),
    "huge file": (_set("spec.files", [{**FILE, "sizeBytes": 16_000_001}]), "spec.files[0].sizeBytes"),
    "files and blocks too large for one part": (
        _all(_set("spec.blocks.0.sizeBytes", 600_000), _set("spec.files", [{**FILE, "sizeBytes": 400_001}])),
        "spec.payloadRef: Invalid value",
    ),
    "files and blocks too large for all parts": (
        _all(_set("spec.payloadRef.parts", 16), _set("spec.files", [{**FILE, "sizeBytes": 16_000_000}])),
        "must not exceed 1000000 bytes for each of payloadRef.parts",
    ),
    "a block and no payload": (_set("spec.payloadRef", None), "spec.payloadRef: Invalid value"),
    "a file and no payload": (
        _all(IN_A_SESSION, NO_BLOCKS, _set("spec.files", [FILE]), _set("spec.payloadRef", None)),
        "there must be a payloadRef or a sealedPayload if there are blocks or files",
    ),
    "much code in a sealed payload": (
        _all(
            _set("spec.payloadRef", None),
            _set("spec.sealedPayload", {"keyName": "k", "data": "AAAA"}),
            _set("spec.blocks.0.sizeBytes", 16 * 1024 + 1),
        ),
        "blocks and files together must not exceed 16384 bytes in a sealedPayload",
    ),
    "a sealed payload that is no base64": (
        _all(_set("spec.payloadRef", None), _set("spec.sealedPayload", {"keyName": "k", "data": "a-b"})),
        "spec.sealedPayload.data",
    ),
    "a payload that is sealed and in a Secret": (
        _set("spec.sealedPayload", {"keyName": "k", "data": "AAAA"}),
        "there must not be a payloadRef and a sealedPayload",
    ),
    "a payload of nothing": (
        _all(IN_A_SESSION, NO_BLOCKS),
        "there must be a payloadRef or a sealedPayload if there are blocks or files",
    ),
    "payload in no part": (_set("spec.payloadRef.parts", 0), "spec.payloadRef.parts"),
    "payload in too many parts": (_set("spec.payloadRef.parts", 17), "spec.payloadRef.parts"),
    "payload with a bad name": (_set("spec.payloadRef.name", "No Name"), "spec.payloadRef.name"),
    "no source": (_set("spec.source", None), "spec.source: Required value"),
    "empty agent": (_set("spec.source.agent", ""), "spec.source.agent"),
    "agent that looks like columns": (_set("spec.source.agent", "a\tSucceeded"), "spec.source.agent"),
    "agent with a change of direction": (_set("spec.source.agent", "a\u202eb"), "spec.source.agent"),
    "agent with two blanks": (_set("spec.source.agent", "a  b"), "spec.source.agent"),
    "timeout of zero": (_set("spec.timeoutSeconds", 0), "spec.timeoutSeconds"),
    "timeout of two days": (_set("spec.timeoutSeconds", 172_800), "spec.timeoutSeconds"),
    "timeout that is text": (_set("spec.timeoutSeconds", "60"), "spec.timeoutSeconds"),
    "image by tag": (_set("spec.image", "python:3"), "spec.image"),
    "no CPU": (_set("spec.limits", {"cpu": "0"}), "spec.limits.cpu"),
    "CPU without end": (_set("spec.limits", {"cpu": 10**18}), "spec.limits.cpu"),
    "memory that is no quantity": (_set("spec.limits", {"memory": "much"}), "spec.limits.memory"),
    "negative storage": (_set("spec.limits", {"ephemeralStorage": "-1Gi"}), "spec.limits.ephemeralStorage"),
    "too much output": (_set("spec.limits", {"outputBytes": 1 << 30}), "spec.limits.outputBytes"),
    "session with a bad name": (_set("spec.sessionRef", {"name": "No Name"}), "spec.sessionRef.name"),
    "session without a name": (_set("spec.sessionRef", {}), "spec.sessionRef.name: Required value"),
    "image in a session": (
        _all(IN_A_SESSION, _set("spec.image", f"x@sha256:{DIGEST}")),
        "spec.sessionRef: Invalid value",
    ),
    "runtime class in a session": (
        _all(IN_A_SESSION, _set("spec.runtimeClassName", "gvisor")),
        "image and runtimeClassName are those of the session",
    ),
    "unknown list of artifacts": (_set("spec.artifacts", {"list": "Some"}), "spec.artifacts.list"),
    "too many patterns": (_set("spec.artifacts", {"fetch": ["*"] * 65}), "spec.artifacts.fetch: Too many: 65"),
    "empty pattern": (_set("spec.artifacts", {"fetch": [""]}), "spec.artifacts.fetch[0]"),
    "trace context that is none": (_set("spec.traceparent", "00-xyz"), "spec.traceparent"),
    "negative time to live": (_set("spec.ttlSecondsAfterFinished", -1), "spec.ttlSecondsAfterFinished"),
    "name that is too long for a pod": (_set("metadata.name", "n" * 60), "metadata.name"),
    "name with a dot": (_set("metadata.name", "a.b"), "metadata.name"),
    "unknown field": (_set("spec.privileged", True), 'unknown field "spec.privileged"'),
}


@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
def test_good_execution_is_accepted(admin, change):
    execution = _execution()
    change(execution)
    assert _objection(admin, execution) == ""


@pytest.mark.parametrize(("change", "field"), BAD.values(), ids=BAD)
def test_bad_execution_is_refused(admin, change, field):
    execution = _execution()
    change(execution)
    assert field in _objection(admin, execution)


GOOD_SESSIONS: dict[str, Thing] = {
    "nothing but who asks": {},
    "everything": {
        "image": f"x@sha256:{DIGEST}",
        "runtimeClassName": "gvisor",
        "limits": {"cpu": 1, "memory": "1Gi", "ephemeralStorage": "1Gi", "pids": 64, "outputBytes": 16 << 20},
        "stateful": True,
        "idleTimeoutSeconds": 604_800,
        "maxLifetimeSeconds": 604_800,
        "traceparent": TRACEPARENT,
    },
    "one that sleeps": {"idleTimeoutSeconds": 2, "sleepAfterSeconds": 1},
    "the shortest": {"idleTimeoutSeconds": 1, "maxLifetimeSeconds": 1},
}
BAD_SESSIONS = {
    "no spec": (_set("spec", None), "spec: Required value"),
    "no source": (_set("spec.source", None), "spec.source: Required value"),
    "empty agent": (_set("spec.source.agent", ""), "spec.source.agent"),
    "agent that looks like columns": (_set("spec.source.agent", "a\tSucceeded"), "spec.source.agent"),
    "agent with a change of direction": (_set("spec.source.agent", "a\u202eb"), "spec.source.agent"),
    "agent with two blanks": (_set("spec.source.agent", "a  b"), "spec.source.agent"),
    "no idle limit": (_set("spec.idleTimeoutSeconds", 0), "spec.idleTimeoutSeconds"),
    "more than a week": (_set("spec.maxLifetimeSeconds", 604_801), "spec.maxLifetimeSeconds"),
    "lifetime that is text": (_set("spec.maxLifetimeSeconds", "8h"), "spec.maxLifetimeSeconds"),
    "image by tag": (_set("spec.image", "python:3"), "spec.image"),
    "empty runtime class": (_set("spec.runtimeClassName", ""), "spec.runtimeClassName"),
    "no CPU": (_set("spec.limits", {"cpu": "0"}), "spec.limits.cpu"),
    "too much output": (_set("spec.limits", {"outputBytes": 1 << 30}), "spec.limits.outputBytes"),
    "a sleep that comes at once": (_set("spec.sleepAfterSeconds", 0), "spec.sleepAfterSeconds"),
    "a sleep after the end": (
        _set("spec.sleepAfterSeconds", 1800),
        "spec.sleepAfterSeconds must be lower than spec.idleTimeoutSeconds",
    ),
    "a sleep that loses variables": (
        _set("spec", {"source": {"agent": "x"}, "stateful": True, "sleepAfterSeconds": 60}),
        "spec.sleepAfterSeconds: a stateful session can't sleep",
    ),
    "state that is text": (_set("spec.stateful", "yes"), "spec.stateful"),
    "trace context that is none": (_set("spec.traceparent", "00-xyz"), "spec.traceparent"),
    "blocks of its own": (_set("spec.blocks", [BLOCK]), 'unknown field "spec.blocks"'),
    "name that is too long for a pod": (_set("metadata.name", "n" * 55), "metadata.name"),
    "name with a dot": (_set("metadata.name", "a.b"), "metadata.name"),
}


@pytest.mark.parametrize("spec", GOOD_SESSIONS.values(), ids=GOOD_SESSIONS)
def test_good_session_is_accepted(admin, spec):
    assert _objection(admin, _session(**spec)) == ""


@pytest.mark.parametrize(("change", "field"), BAD_SESSIONS.values(), ids=BAD_SESSIONS)
def test_bad_session_is_refused(admin, change, field):
    session = _session()
    change(session)
    assert field in _objection(admin, session)


def _rules(**actions: list[str]) -> Thing:
    return {"spec": {"codeRules": [{"action": action, "imports": names} for action, names in actions.items()]}}


GOOD_POLICIES: dict[str, Thing] = {
    "the least": {},
    "requests of pods": {"spec": {"requests": {"cpu": "20m", "memory": 67_108_864}}},
    "rules for code": _rules(Deny=["ctypes"], NeedApproval=["socket", "subprocess"], Note=["os"]),
}
BAD_POLICIES = {
    "an action that is none": (_rules(Warn=["os"]), "spec.codeRules[0].action"),
    "a rule for nothing": (_rules(Deny=[]), "spec.codeRules[0].imports"),
    "a rule for a pattern": (_rules(Deny=["os.*"]), "spec.codeRules[0].imports[0]"),
    "too much in a rule": (_rules(Deny=[f"m{number}" for number in range(33)]), "spec.codeRules[0].imports: Too many"),
    "two rules of one action": (
        {"spec": {"codeRules": [{"action": "Deny", "imports": [name]} for name in ("os", "socket")]}},
        "spec.codeRules[1]: Duplicate value",
    ),
    "another name": ({"metadata": {"name": "mine"}}, "metadata.name"),
    "no images": ({"spec": {"images": []}}, "spec.images"),
    "image by tag": ({"spec": {"images": ["python:3"]}}, "spec.images[0]"),
    "unknown language": ({"spec": {"languages": ["perl"]}}, "spec.languages[0]"),
    "a language twice": ({"spec": {"languages": ["python", "bash", "python"]}}, "spec.languages[2]: Duplicate value"),
    "a range that is none": (
        {"spec": {"egress": [{"cidr": "db.example.org", "port": 443}]}},
        "spec.egress[0].cidr",
    ),
    "timeout of zero": ({"spec": {"maxTimeoutSeconds": 0}}, "spec.maxTimeoutSeconds"),
    "nothing requested": ({"spec": {"requests": {"cpu": "0"}}}, "spec.requests.cpu"),
    "processes requested": ({"spec": {"requests": {"pids": 4}}}, 'unknown field "spec.requests.pids"'),
    "output for a moment": ({"spec": {"outputTTLSeconds": 59}}, "spec.outputTTLSeconds"),
    "no idle limit": ({"spec": {"maxSessionIdleSeconds": 0}}, "spec.maxSessionIdleSeconds"),
    "sessions of more than a week": (
        {"spec": {"maxSessionLifetimeSeconds": 604_801}},
        "spec.maxSessionLifetimeSeconds",
    ),
    "records for a moment": ({"spec": {"records": {"maxAgeSeconds": 299}}}, "spec.records.maxAgeSeconds"),
    "no use of a pod": ({"spec": {"podReuse": {"maxExecutions": 0}}}, "spec.podReuse.maxExecutions"),
    "a pod for ever": ({"spec": {"podReuse": {"maxExecutions": 101}}}, "spec.podReuse.maxExecutions"),
    "sleep at once": ({"spec": {"sessionSleep": {"minAfterSeconds": 0}}}, "spec.sessionSleep.minAfterSeconds"),
    "no records": ({"spec": {"records": {"maxCount": 0}}}, "spec.records.maxCount"),
}


def _policy(change: Thing) -> Thing:
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "ExecutionPolicy",
        "metadata": {"name": "default", "namespace": SANDBOX} | change.get("metadata", {}),
        "spec": {"images": [f"x@sha256:{DIGEST}"]} | change.get("spec", {}),
    }


@pytest.mark.parametrize("change", GOOD_POLICIES.values(), ids=GOOD_POLICIES)
def test_good_policy_is_accepted(admin, change):
    assert _objection(admin, _policy(change)) == ""


@pytest.mark.parametrize(("change", "field"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_bad_policy_is_refused(admin, change, field):
    assert field in _objection(admin, _policy(change))


@pytest.fixture(scope="module")
def stored(admin) -> str:
    """Name of an execution. Nobody looks after it: what its spec may become is for the API server to say."""
    thing = _execution()
    thing["spec"]["ttlSecondsAfterFinished"] = 0
    admin.create(thing)
    return thing["metadata"]["name"]


CHANGES: dict[str, Thing] = {
    "blocks": {"blocks": [{**BLOCK, "sha256": "1" * 64}]},
    "payloadRef": {"payloadRef": {"name": "other"}},
    "sessionRef": {"sessionRef": {"name": "mine"}},
    "artifacts": {"artifacts": {"fetch": ["*"]}},
    "source": {"source": {"agent": "somebody-else"}},
    "timeoutSeconds": {"timeoutSeconds": 99},
    "limits": {"limits": {"cpu": "2"}},
    "image": {"image": f"x@sha256:{DIGEST}"},
    "files": {"files": [FILE]},
    "traceparent": {"traceparent": TRACEPARENT},
    "ttlSecondsAfterFinished": {"ttlSecondsAfterFinished": 5},
}
CHANGES_OF_A_SESSION: dict[str, Thing] = {
    "source": {"source": {"agent": "somebody-else"}},
    "limits": {"limits": {"cpu": "2"}},
    "image": {"image": None},
    "runtimeClassName": {"runtimeClassName": "gvisor"},
    "stateful": {"stateful": True},
    "idleTimeoutSeconds": {"idleTimeoutSeconds": 99},
    "maxLifetimeSeconds": {"maxLifetimeSeconds": 99},
    "traceparent": {"traceparent": TRACEPARENT},
}


def _patch(admin: Admin, kind: str, name: str, spec: Thing) -> str:
    """What the API server objects to; empty if it makes the change."""
    return getattr(admin.try_patch(kind, name, {"spec": spec}), "message", "")


@pytest.fixture(scope="module")
def stored_session(admin) -> str:
    session = _session(image=f"x@sha256:{DIGEST}")
    admin.create(session)
    return session["metadata"]["name"]


@pytest.mark.parametrize("field", CHANGES)
def test_spec_is_immutable(admin, stored, field):
    assert f"spec.{field} is immutable" in _patch(admin, "codeexecution", stored, CHANGES[field])


@pytest.mark.parametrize("field", CHANGES_OF_A_SESSION)
def test_spec_of_a_session_is_immutable(admin, stored_session, field):
    refused = _patch(admin, "codesession", stored_session, CHANGES_OF_A_SESSION[field])
    assert f"spec.{field} is immutable: create a new CodeSession instead" in refused


def test_cancellation_cannot_be_taken_back(admin, stored):
    assert _patch(admin, "codeexecution", stored, {"cancelled": True}) == ""
    assert "spec.cancelled can't be taken back" in _patch(admin, "codeexecution", stored, {"cancelled": False})


def test_the_end_of_a_session_cannot_be_taken_back(admin, stored_session):
    assert _patch(admin, "codesession", stored_session, {"ended": True}) == ""
    assert "spec.ended can't be taken back" in _patch(admin, "codesession", stored_session, {"ended": False})


def test_names_that_kubectl_knows(admin):
    rows = admin.kubectl("api-resources", "--api-group=codeexec.dev", "--no-headers").splitlines()
    assert [row.split() for row in sorted(rows)] == [
        ["codeexecutions", "cex", "codeexec.dev/v1alpha1", "true", "CodeExecution"],
        ["codesessions", "cses", "codeexec.dev/v1alpha1", "true", "CodeSession"],
        ["executionapprovals", "xapp", "codeexec.dev/v1alpha1", "true", "ExecutionApproval"],
        ["executionpolicies", "xpol", "codeexec.dev/v1alpha1", "true", "ExecutionPolicy"],
        ["sandboxpools", "sbp", "codeexec.dev/v1alpha1", "true", "SandboxPool"],
    ]
    assert admin.try_kubectl("-n", SANDBOX, "get", "codeexec").returncode == 0, "all of them at once"
    assert "can't be taken back" in " ".join(admin.kubectl("explain", "codesession.spec.ended").split())
    explained = admin.kubectl("explain", "codeexecution.spec.blocks.sha256")
    assert "64 lower-case hexadecimal digits" in " ".join(explained.split())


def test_the_columns_of_an_approval_show_when_it_expires(admin):
    """A date in the future would be shown as `<invalid>`."""
    grants = [{"field": "spec.limits.memory", "value": "4Gi"}]
    asking = {
        "metadata": {"name": a_name("contract"), "uid": "1"},
        "spec": {"requestedBy": "somebody-else"},
        "status": {"approval": {"grants": grants}},
    }
    approval = an_approval(asking, admin.me)
    admin.create(approval)
    row = admin.kubectl("-n", SANDBOX, "get", "xapp", approval["metadata"]["name"], "--no-headers").split()
    assert row[1:6] == [asking["metadata"]["name"], "Approve", admin.me, approval["spec"]["expiresAt"], "false"]
