"""What `codeexec audit verify --from-cluster` reads: the logs of the operator's pods."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api.audit_check import Verification, read_log, verify
from codeexec_api.audit_findings import FindingKind, LogLine
from codeexec_api.checkpoints import Witness
from codeexec_api.names import OPERATOR_SELECTOR
from executor_client.cli.common import in_namespace, now
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import ClusterRef
from executor_client.exceptions import NotInstalled, NotPermitted
from executor_client.transport.kube_api import CORE, LONG_SECONDS, KubeApi

OPERATOR_NAMESPACE: Final = "codeexec-system"
"""Where the documentation installs the operator."""
_CONTAINER: Final = "operator"
_NO_LOG: Final = (400, 404)
"""What the API server answers where there is no log: the pod has no node, its container has not started, or it is gone.
"""
_PASSING: Final = frozenset((FindingKind.RECORD_OUTDATED, FindingKind.RECORD_UNANCHORED))
"""What is found of a record between its line and its status, which the operator writes a moment later."""
_ATTEMPTS: Final = 3
_SETTLE_SECONDS: Final = 1.0

of_the_operator: Final = in_namespace(
    click.option(
        "--operator-namespace",
        "namespace",
        metavar="NAME",
        default=OPERATOR_NAMESPACE,
        show_default=True,
        help="Namespace of the operator.",
    )
)
"""The options that select the cluster, and the namespace of the operator."""


@dataclass(frozen=True)
class ContainerLog:
    """The log of one container of the operator, as far as the node keeps it."""

    name: str
    """Name of the pod, and which of its containers."""
    text: tuple[str, ...]

    def lines(self) -> list[LogLine]:
        """Those that may hold audit lines."""
        return list(read_log(self.name, self.text))

    def added_to(self, earlier: Sequence["ContainerLog"]) -> list[LogLine]:
        """The lines that it has beyond the one of these that is the same log, read earlier."""
        if self.rotated_since(earlier):
            return list(read_log(f"{self.name}, rotated", self.text))
        return [line for line in self.lines() if line.number > len(self._text_in(earlier))]

    def rotated_since(self, earlier: Sequence["ContainerLog"]) -> bool:
        """True if the node has begun a new file since the one of these that is the same log was read."""
        before = self._text_in(earlier)
        return self.text[: len(before)] != before

    def _text_in(self, logs: Sequence["ContainerLog"]) -> tuple[str, ...]:
        return next((one.text for one in logs if one.name == self.name), ())


class OperatorLog(KubeApi):
    """A connection to the namespace of the operator."""

    async def read(self) -> list[ContainerLog]:
        """The logs of all pods of the operator, oldest first, each with that of its previous container.

        Raises:
            NotInstalled: there is no such pod.
            NotPermitted: this identity may not read them.
            CodeExecError: see `exceptions`.
        """
        found: list[ContainerLog] = []
        for pod in await self._pods():
            name = pod["metadata"]["name"]
            for previous in (True, False) if _has_restarted(pod) else (False,):
                text = await self._text(name, previous=previous)
                found += [ContainerLog(f"{name}{' (previous)' if previous else ''}", text)] if text is not None else []
        return found

    async def _pods(self) -> list[dict[str, Any]]:
        query = {"labelSelector": OPERATOR_SELECTOR}
        with self.errors("list the operator's pods"), self._rights("list pods"):
            answer = await self.request("GET", self.path(CORE, "pods"), query, seconds=LONG_SECONDS)
        pods: list[dict[str, Any]] = answer["items"]
        if not pods:
            raise NotInstalled(
                f"found no operator pod in namespace {self.namespace!r}; pass the operator's namespace with "
                "--operator-namespace"
            )
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    async def _text(self, pod: str, *, previous: bool) -> tuple[str, ...] | None:
        """The lines of a log; None if there is none. One that is just being written is left out."""
        query = {"container": _CONTAINER, "previous": str(previous).lower()}
        with self.errors("read the operator's log"), self._rights("get pods/log"):
            try:
                text = await self.text(self.path(CORE, "pods", pod, "log"), query, seconds=LONG_SECONDS)
            except ApiException as error:
                if error.status in _NO_LOG:
                    return None
                raise
        return tuple(text.split("\n")[:-1])

    @contextmanager
    def _rights(self, verb: str) -> Iterator[None]:
        """Say which right is missing."""
        try:
            yield
        except ApiException as error:
            if error.status != 403:
                raise
            raise NotPermitted(
                f"this identity may not {verb} in namespace {self.namespace!r}, where the operator's log is; it needs "
                "`list` on pods and `get` on pods/log there. Ask the platform owner, or pass log files: codeexec audit "
                "verify FILE..."
            ) from error


async def verify_with_operator(
    client: CodeExecutionClient,
    ref: ClusterRef,
    namespace: str,
    given: Sequence[LogLine],
    *,
    complete: bool,
    witness: Witness | None = None,
    export: Mapping[str, bytes] | None = None,
) -> Verification:
    """Check the operator's log and the records against each other, while the operator goes on writing both.

    The log is read before the records and again after them. So the line of each record is there, and a record is not
    held against lines that were written after it was read. If the node begins a new file of the log between the two,
    lines may be missing that nobody has removed, so both are read again.

    Args:
        client: reads the records.
        ref: the cluster, and the namespace of the records.
        namespace: of the operator.
        given: further lines, of logs that were kept.
        complete: as of `verify`.
        witness: as of `verify`.
        export: as of `verify`.

    Raises:
        CodeExecError: see `OperatorLog.read`.
    """
    async with OperatorLog.opened(**ref.kube_context(namespace)) as operator:
        for attempt in range(1, _ATTEMPTS + 1):
            before = await operator.read()
            records = await client.list_evidence()
            after = await operator.read()
            found = verify(
                [*given, *(line for log in before for line in log.lines())],
                records,
                now=now(),
                namespace=ref.namespace,
                complete=complete,
                witness=witness,
                export=export,
                later=[line for log in after for line in log.added_to(before)],
            )
            rotated = any(log.rotated_since(before) for log in after)
            passing = _PASSING | {FindingKind.MISSING} if rotated else _PASSING
            if attempt == _ATTEMPTS or not any(one.kind in passing for one in found.findings):
                break
            await asyncio.sleep(_SETTLE_SECONDS)
    return found


def _has_restarted(pod: Mapping[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any(one["name"] == _CONTAINER and one["restartCount"] for one in statuses)
