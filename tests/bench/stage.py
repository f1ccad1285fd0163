"""What a measurement needs in the cluster, made for it and taken away again: pools, a namespace, bare pods."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cluster_tools import SANDBOX, image
from kubernetes.aio import client, watch
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution
from codeexec_api.names import API_VERSION, GROUP, POLICY_NAME, POOL_KIND, POOL_PLURAL, VERSION
from codeexec_api.v1alpha1.bounds import MAX_POD_USES
from codeexec_operator.manifests.pod import build_pod
from executor_client import Limits

NAMESPACE = "codeexec-bench"
"""Of the pods that are not ours: a sandbox namespace takes no pod without our runner."""
REST_SECONDS = 3
"""A pod that has just become ready still takes the node's time for a while, and agents think between two calls."""
_POOLS = (GROUP, VERSION, SANDBOX, POOL_PLURAL)


class Pool:
    """A SandboxPool for this run, full when it is entered."""

    def __init__(self, api: client.ApiClient, replicas: int, limits: Limits, *, stateful: bool = False) -> None:
        self._custom = client.CustomObjectsApi(api)
        self._name = f"bench-{uuid.uuid4().hex[:8]}"
        self._replicas, self._limits, self._stateful = replicas, limits, stateful

    async def __aenter__(self) -> "Pool":
        limits = {"cpu": self._limits.cpu, "memory": self._limits.memory}
        body = {
            "apiVersion": API_VERSION,
            "kind": POOL_KIND,
            "metadata": {"name": self._name},
            "spec": {"replicas": self._replicas, "limits": limits, "stateful": self._stateful},
        }
        await self._custom.create_namespaced_custom_object(*_POOLS, body)
        await self.full()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._custom.delete_namespaced_custom_object(*_POOLS, self._name)

    async def full(self) -> None:
        """Wait until it is, as its status says, which is written a second after something has changed, and at rest."""
        await asyncio.sleep(1.5)
        while (await self._status()).get("readyReplicas", 0) < self._replicas:  # noqa: ASYNC110 it is asked for
            await asyncio.sleep(0.1)
        await asyncio.sleep(REST_SECONDS)

    async def _status(self) -> Any:
        found: Any = await self._custom.get_namespaced_custom_object(*_POOLS, self._name)
        return found.get("status", {})


@asynccontextmanager
async def pods_used_again(api: client.ApiClient) -> AsyncIterator[None]:
    """The namespace has a policy of its own meanwhile, which lets a pod run as many executions as it can be let."""
    custom, where = client.CustomObjectsApi(api), (GROUP, VERSION, SANDBOX, "executionpolicies")
    spec = {"images": [image()], "podReuse": {"maxExecutions": MAX_POD_USES}}
    body = {"apiVersion": API_VERSION, "kind": "ExecutionPolicy", "metadata": {"name": POLICY_NAME}, "spec": spec}
    await custom.create_namespaced_custom_object(*where, body)
    try:
        yield
    finally:
        await custom.delete_namespaced_custom_object(*where, POLICY_NAME)


@asynccontextmanager
async def without_the_default_pool(api: client.ApiClient) -> AsyncIterator[None]:
    """What is timed without a pool must not get a pod of that one, and its pods would start beside what is timed."""
    custom = client.CustomObjectsApi(api)
    where = (*_POOLS, "default")

    async def scale(replicas: int) -> None:
        patch = {"spec": {"replicas": replicas}}
        await custom.patch_namespaced_custom_object(*where, patch, _content_type="application/merge-patch+json")

    try:
        found: Any = await custom.get_namespaced_custom_object(*where)
    except ApiException as error:
        if error.status != 404:
            raise
        yield  # there is none
        return
    await scale(0)
    try:
        yield
    finally:
        await scale(found["spec"]["replicas"])


@asynccontextmanager
async def a_namespace(core: client.CoreV1Api) -> AsyncIterator[None]:
    await core.create_namespace({"metadata": {"name": NAMESPACE}})
    try:
        yield
    finally:
        await core.delete_namespace(NAMESPACE)


def bare_template(command: Sequence[str], limits: Limits) -> dict[str, Any]:
    """A pod with the hardening of ours that runs this command instead of our runner; it has no name yet."""
    request = {
        "metadata": {"name": "bench", "namespace": NAMESPACE, "uid": str(uuid.uuid4())},
        "spec": {
            "source": {"agent": "bench"},
            "payloadRef": {"name": "bench"},
            "blocks": [{"language": "python", "sha256": "0" * 64, "sizeBytes": 0}],
            "limits": limits.dump(),
        },
    }
    execution = CodeExecution.parse(request)
    pod = build_pod(execution, image=image(), deadline_seconds=3600, user_namespace=True)
    [container] = pod["spec"]["containers"]
    container |= {"command": list(command), "stdin": False}
    return pod


async def create_pod(core: client.CoreV1Api, template: dict[str, Any]) -> tuple[str, str]:
    """Create a pod from a template under a new name; returns the name and its first resourceVersion."""
    pod = json.loads(json.dumps(template)) | {"metadata": {"name": f"bench-{uuid.uuid4().hex[:8]}"}}
    created = await core.create_namespaced_pod(NAMESPACE, pod)
    return created.metadata.name, created.metadata.resource_version


async def until_phase(core: client.CoreV1Api, name: str, since: str, *phases: str) -> None:
    """Wait until a pod is in one of these phases.

    Raises:
        AssertionError: it isn't after a minute.
    """
    async with watch.Watch().stream(
        core.list_namespaced_pod,
        NAMESPACE,
        field_selector=f"metadata.name={name}",
        resource_version=since,
        timeout_seconds=60,
    ) as events:
        async for event in events:
            if event["raw_object"]["status"]["phase"] in phases:
                return
    raise AssertionError(f"waited 60 s in vain for pod {name} to be {' or '.join(phases)}")


@asynccontextmanager
async def standing_pod(core: client.CoreV1Api, command: Sequence[str], limits: Limits) -> AsyncIterator[str]:
    """The name of a bare pod that runs this command all the time, with stdin open."""
    template = bare_template(command, limits)
    [container] = template["spec"]["containers"]
    container["stdin"] = True
    name, since = await create_pod(core, template)
    try:
        await until_phase(core, name, since, "Running")
        yield name
    finally:
        await core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
