"""The checks of `codeexec doctor`: pure functions that judge observations, without I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from codeexec_api import CodeExecution, EgressProof, EgressVerdict, Phase
from codeexec_api.names import EXECUTION_KIND, EXECUTION_PLURAL, GROUP, SESSION_KIND, SESSION_PLURAL
from executor_client.model.results import message_of
from executor_client.model.words import Caller

_TOLERATED_SKEW_SECONDS: Final = 10
"""Requests for live output and the validity of tokens depend on the time."""


class Outcome(StrEnum):
    """The outcome of one check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """The result of one check, and what to do about it."""

    check: str
    outcome: Outcome
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Right:
    """One permission that this client needs from the API server."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        """In the form of `kubectl auth can-i`."""
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


KINDS: Final = (EXECUTION_KIND, SESSION_KIND)
_OBJECT_VERBS: Final = ("create", "get", "list", "watch", "patch")
LIVE_OUTPUT: Final = Right("", "pods/log", "get")
RIGHTS: Final = (
    *(Right(GROUP, plural, verb) for plural in (EXECUTION_PLURAL, SESSION_PLURAL) for verb in _OBJECT_VERBS),
    *(Right("coordination.k8s.io", "leases", verb) for verb in ("create", "patch", "delete")),
    Right("", "secrets", "create"),
    Right("", "configmaps", "get"),
    LIVE_OUTPUT,
)
"""All permissions that the client needs in a sandbox namespace."""


def judge_kinds(present: Iterable[str]) -> Finding:
    """Check that the API server knows the kinds of this client. `present` lists the kinds of our group and version."""
    missing = [kind for kind in KINDS if kind not in set(present)]
    if not missing:
        return Finding("kinds", Outcome.OK, f"the API server knows {' and '.join(KINDS)}")
    return Finding(
        "kinds",
        Outcome.FAILED,
        f"the API server does not know {' and '.join(missing)}",
        "install or upgrade the codeexec Helm chart, which brings the CRDs",
    )


def judge_rights(allowed: Mapping[Right, bool], namespace: str) -> Finding:
    """Check the rights of this identity. Without the right to live output, everything else works."""
    missing = [right for right, may in allowed.items() if not may]
    if not missing:
        return Finding("rights", Outcome.OK, f"all {len(allowed)} that the client uses in namespace {namespace!r}")
    found = f"missing in namespace {namespace!r}: {', '.join(map(str, missing))}"
    advice = "ask the platform owner to bind the Role 'codeexec-agent' to this identity"
    if missing == [LIVE_OUTPUT]:
        return Finding("rights", Outcome.WARNING, f"{found}; output appears only when the code has ended", advice)
    return Finding("rights", Outcome.FAILED, found, advice)


def judge_runtime_class(name: str, exists: bool | None) -> Finding:
    """Check that the RuntimeClass exists. `exists` is None if this identity may not read RuntimeClasses."""
    if exists is None:
        return Finding(
            "runtime class",
            Outcome.UNKNOWN,
            f"this identity may not read RuntimeClasses, so {name!r} was not checked",
            "ask the platform owner to run: kubectl get runtimeclasses",
        )
    if exists:
        return Finding("runtime class", Outcome.OK, f"{name!r} exists")
    return Finding(
        "runtime class",
        Outcome.FAILED,
        f"{name!r} does not exist in this cluster",
        "pass one that `kubectl get runtimeclasses` lists, or omit --runtime-class",
    )


def judge_clock(server: datetime | None, asked: datetime, answered: datetime) -> Finding:
    """Compare the clocks. The API server reported the time `server` at a moment between `asked` and `answered`."""
    if server is None:
        return Finding(
            "clock",
            Outcome.UNKNOWN,
            "the API server did not report its time",
            "compare the clock of this machine with a time server",
        )
    # The header is rounded down to whole seconds.
    ahead = max((asked - server).total_seconds() - 1, 0) or min((answered - server).total_seconds(), 0)
    if abs(ahead) <= _TOLERATED_SKEW_SECONDS:
        return Finding("clock", Outcome.OK, "this machine and the API server agree")
    return Finding(
        "clock",
        Outcome.WARNING,
        f"this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the API server",
        "set the clock, for example by NTP: the validity of credentials and certificates depends on it",
    )


def judge_versions(client: str, operator: str) -> Finding:
    """Check that client and operator have the same major and minor version."""
    if not operator:
        return Finding(
            "versions",
            Outcome.UNKNOWN,
            f"client {client}; the operator did not record its version",
            "upgrade the codeexec Helm chart: this operator is too old to record its version",
        )
    found = f"client {client}, operator {operator}"
    if client.split(".")[:2] == operator.split(".")[:2]:
        return Finding("versions", Outcome.OK, found)
    return Finding(
        "versions", Outcome.WARNING, found, "install the same minor version of the client and the Helm chart"
    )


def judge_probe(execution: CodeExecution, client_version: str) -> list[Finding]:
    """Judge operator, policy, network and pod by the record of a finished probe, which runs one line of Python."""
    status = execution.status
    findings = [_execution(execution)]
    if status.egress_proof or status.phase is Phase.SUCCEEDED:
        findings.append(_network(status.egress_proof))
    if status.phase is Phase.SUCCEEDED:
        runtime = status.runtime_class_name or "the node's own"
        boundary = status.boundary.value if status.boundary else "unknown"
        layers = ", ".join(status.layers) or "none"
        found = f"runtime class: {runtime}; boundary: {boundary}; layers: {layers}"
        findings.append(Finding("isolation", Outcome.OK, found))
    findings.append(judge_versions(client_version, status.operator_version))
    return findings


def _execution(execution: CodeExecution) -> Finding:
    status = execution.status
    name = execution.metadata.name
    if status.phase is Phase.AWAITING_APPROVAL:
        return Finding(
            "execution",
            Outcome.UNKNOWN,
            f"the operator is at work, and the policy lets no code run before somebody approves it: {status.message}",
            f"doctor has cancelled {name}; run `codeexec run` and approve the code to see that it runs",
        )
    if status.phase is not Phase.SUCCEEDED:
        message = message_of(execution, Caller.COMMAND_LINE)
        return Finding(
            "execution",
            Outcome.FAILED,
            f"{name} ended as {status.phase}/{status.reason}: {message}",
            f"look up the reason in docs/troubleshooting.md, or run: codeexec get {name}",
        )
    started = status.started_at
    created = execution.metadata.creation_timestamp
    after = f" after {max((started - created).total_seconds(), 0):.0f} s" if started and created else ""
    return Finding("execution", Outcome.OK, f"{name}: the operator is at work, and code ran{after}")


def _network(proof: EgressProof | None) -> Finding:
    if proof is None:
        return Finding(
            "network",
            Outcome.UNKNOWN,
            "the record holds no egress proof",
            "ask the platform owner to read the operator's log",
        )
    names = ", ".join(dict.fromkeys(target.name for target in proof.targets)) or "none"
    if proof.verdict is EgressVerdict.CLOSED:
        return Finding("network", Outcome.OK, f"NetworkPolicy is enforced; the sandbox cannot reach: {names}")
    if proof.verdict is EgressVerdict.OPEN:
        open_names = ", ".join(target.name for target in proof.targets if target.refused is False)
        return Finding(
            "network",
            Outcome.FAILED,
            f"NetworkPolicy is not enforced: the sandbox could reach {open_names or 'one of its targets'}",
            "install a network plugin that enforces NetworkPolicy; see EgressNotEnforced in docs/troubleshooting.md",
        )
    return Finding(
        "network",
        Outcome.WARNING,
        f"the check could not show that NetworkPolicy is enforced (targets: {names})",
        "the operator itself must be able to reach a target; see EgressNotEnforced in docs/troubleshooting.md",
    )


def failed(findings: Iterable[Finding]) -> bool:
    """True if a check failed."""
    return any(finding.outcome is Outcome.FAILED for finding in findings)
