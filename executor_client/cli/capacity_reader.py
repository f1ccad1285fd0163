"""What `codeexec doctor --capacity` reads of a cluster. What this identity may not read is named, and never guessed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import pydantic
import yaml
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import ExecutionPolicy, ExecutionPolicySpec
from codeexec_api.names import GROUP, NODE_RUNTIME, POLICY_KIND, POLICY_NAME, POLICY_PLURAL, POOL_PLURAL, VERSION
from codeexec_api.policy import inheriting
from executor_client.cli.diagnosis import Right
from executor_client.cli.inspector import Inspector, runtime_class_path
from executor_client.exceptions import CodeExecError, NotFound
from executor_client.transport.api_errors import message
from executor_client.transport.kube_api import CORE, OURS

_PAGE: Final = 500
_CHART: Final = "app.kubernetes.io/part-of=codeexec"
_POLICY_KEY: Final = "policy.yaml"
_FORBIDDEN: Final = 403

Objects = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Missing:
    """A right that this identity lacks, and what can't be said without it."""

    right: Right
    where: str
    so: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.right} {self.where}: {self.so}"


@dataclass
class Facts:
    """What was read; None for what this identity may not read."""

    policy: ExecutionPolicySpec | None = None
    policy_source: str = ""
    nodes: Objects | None = None
    pods: Objects | None = None
    quotas: Objects | None = None
    limit_ranges: Objects | None = None
    pools: Objects | None = None
    runtime_class: dict[str, Any] | None = None
    runtime_class_known: bool = True
    """False if the pods have a RuntimeClass that this identity may not read."""
    missing: list[Missing] = field(default_factory=list)


class CapacityReader(Inspector):
    """Reads with the rights of its identity."""

    async def facts(self, operator_namespace: str, runtime_class: str | None) -> Facts:
        """Everything that capacity depends on.

        Args:
            operator_namespace: that of the ConfigMap with the default policy.
            runtime_class: of the sandboxes; None for the policy's.

        Raises:
            CodeExecError: see `exceptions`; also if the policy or the RuntimeClass is not there.
        """
        here = f"in namespace {self.namespace!r}"
        everywhere = "in all namespaces"
        facts = Facts()
        await self._read_policy(facts, operator_namespace)
        facts.nodes = await self._list(facts, Right("", "nodes", "list"), everywhere, "room on the nodes is unknown")
        facts.pods = await self._list(
            facts, Right("", "pods", "list"), everywhere, "what the nodes' room is used for is unknown"
        )
        facts.quotas = await self._list(facts, Right("", "resourcequotas", "list"), here, "the quota is unknown")
        facts.limit_ranges = await self._list(
            facts, Right("", "limitranges", "list"), here, "whether the limits are accepted is unknown"
        )
        facts.pools = await self._list(facts, Right(GROUP, POOL_PLURAL, "list"), here, "pools are unknown")
        await self._read_runtime_class(facts, runtime_class)
        return facts

    async def cpu_sample(self, node: str) -> tuple[float, float] | str:
        """When the kubelet last measured its node, by its clock, and how many seconds of CPU it had used by then.

        Or why that can't be said.

        Raises:
            CodeExecError: the API server does not answer.
        """
        path = f"{CORE}/nodes/{quote(node, safe='')}/proxy/stats/summary"
        try:
            with self.network_errors(f"read the figures of node {node}"):
                found = await self.request("GET", path, {"only_cpu_and_memory": "true"})
        except ApiException as error:
            if error.status == _FORBIDDEN:
                return "the right get nodes/proxy is missing"
            return (
                f"the kubelet of node {node} can't be asked: {error.status} {message(str(error.body or error.reason))}"
            )
        cpu = found["node"].get("cpu", {})
        if "usageCoreNanoSeconds" not in cpu:
            return f"the kubelet of node {node} has no figures"
        return datetime.fromisoformat(cpu["time"]).timestamp(), cpu["usageCoreNanoSeconds"] / 1e9

    async def _read_policy(self, facts: Facts, operator_namespace: str) -> None:
        own: ExecutionPolicySpec | None = None
        right, so = Right(GROUP, POLICY_PLURAL, "get"), "what a sandbox requests is unknown"
        where = f"in namespace {self.namespace!r}"
        with self._reading("get the policy", facts, right, where, so):
            if raw := await self.find(self.path(OURS, POLICY_PLURAL, POLICY_NAME)):
                own = ExecutionPolicy.read(raw).spec
        if facts.missing:
            return
        default = await self._default_policy(facts, operator_namespace)
        if default:
            place = f"the default policy, in namespace {operator_namespace!r}"
            facts.policy = inheriting(own, default) if own else default
            facts.policy_source = f"the {POLICY_KIND} of namespace {self.namespace!r}, and {place}" if own else place

    async def _default_policy(self, facts: Facts, namespace: str) -> ExecutionPolicySpec | None:
        right = Right("", "configmaps", "list")
        where = f"in namespace {namespace!r}"
        so = "the default policy is unknown, and so is what a sandbox requests"
        found = await self._list(facts, right, where, so, namespace=namespace, labelSelector=_CHART)
        if found is None:
            return None
        texts = [one["data"][_POLICY_KEY] for one in found if _POLICY_KEY in (one.get("data") or {})]
        if len(texts) != 1:
            raise NotFound(
                f"namespace {namespace!r} has {len(texts)} ConfigMaps of codeexec with {_POLICY_KEY} instead of one: "
                "pass the namespace of the operator by --operator-namespace"
            )
        try:
            raw = {"metadata": {"name": POLICY_NAME, "namespace": namespace}, "spec": yaml.safe_load(texts[0])}
            return ExecutionPolicy.read(raw).spec
        except (yaml.YAMLError, pydantic.ValidationError) as error:
            raise CodeExecError(f"the default policy in namespace {namespace!r} can't be read: {error}") from error

    async def _read_runtime_class(self, facts: Facts, chosen: str | None) -> None:
        name = chosen or (facts.policy.runtime_class_name if facts.policy else None)
        if not name or name == NODE_RUNTIME:
            return
        right, so = Right("node.k8s.io", "runtimeclasses", "get"), f"overhead and nodes of {name!r} are unknown"
        with self._reading("read the RuntimeClass", facts, right, "in the cluster", so):
            facts.runtime_class = await self.find(runtime_class_path(name))
            if facts.runtime_class is None:
                raise NotFound(f"RuntimeClass {name!r} does not exist; pass one that does by --runtime-class")
        facts.runtime_class_known = facts.runtime_class is not None

    async def _list(
        self, facts: Facts, right: Right, where: str, so: str, *, namespace: str | None = None, **query: str
    ) -> Objects | None:
        """All objects of a kind. None if this identity may not list them, which is then noted."""
        root = f"/apis/{right.group}/{VERSION}" if right.group else CORE
        place = "" if where == "in all namespaces" else f"/namespaces/{namespace or self.namespace}"
        query = {"limit": str(_PAGE), **query}
        with self._reading(f"list {right.resource}", facts, right, where, so):
            pages = self.pages(f"{root}{place}/{right.resource}", query)
            return [one async for page in pages for one in page["items"]]
        return None

    @contextmanager
    def _reading(self, doing: str, facts: Facts, right: Right, where: str, so: str) -> Iterator[None]:
        """As `errors`, but a right that is missing is noted in the facts instead."""
        with self.errors(doing):
            try:
                yield
            except ApiException as error:
                if error.status != _FORBIDDEN:
                    raise
                facts.missing.append(Missing(right, where, so))
