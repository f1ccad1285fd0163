"""Floods a namespace with requests, with an agent's rights. As a process it takes no time of a test's own:

python tests/support/flooding.py KUBECONFIG NAMESPACE EXECUTIONS SESSIONS LOUD HOSTILE RATE
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from kubernetes.aio import client as kube
from kubernetes.aio import config

from codeexec_api.names import EXECUTION_PLURAL, GROUP, SESSION_PLURAL, VERSION
from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

_AT_ONCE: Final = 20
_AT_ONCE_OF_A_RATE: Final = 1000
_UNREADABLE: Final = {"keyName": "none", "data": "A" * 16_384}
"""Code that no key of the operator opens, so that each of these executions ends by one write, without a pod."""
_BLOCK: Final = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
_LIMITS: Final = {"cpu": "100m", "memory": "96Mi"}
_KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    EXECUTION_PLURAL: ("CodeExecution", {"sealedPayload": _UNREADABLE, "blocks": [_BLOCK]}),
    SESSION_PLURAL: ("CodeSession", {"limits": _LIMITS}),
}
Make = Callable[[int, int], Awaitable[int]]


def in_turns(executions: int, sessions: int) -> list[str]:
    """What is created in which order: the sessions are spread evenly, each behind its share of the executions."""
    numbers = {EXECUTION_PLURAL: executions, SESSION_PLURAL: sessions}
    return [
        plural for _, plural in sorted((one / of, plural) for plural, of in numbers.items() for one in range(1, of + 1))
    ]


@asynccontextmanager
async def flooding(kubeconfig: str, namespace: str, rate: float = 0) -> AsyncIterator[Make]:
    """What makes so many executions and sessions there: some at a time, or so many in a second if there is a rate."""
    at_once = _AT_ONCE_OF_A_RATE if rate else _AT_ONCE
    configuration = kube.Configuration(connection_pool_maxsize=at_once)
    await config.load_kube_config(kubeconfig, client_configuration=configuration)
    turns = asyncio.Semaphore(at_once)
    async with kube.ApiClient(configuration) as api:
        create = kube.CustomObjectsApi(api).create_namespaced_custom_object_without_preload_content

        async def one(plural: str, after: float) -> None:
            kind, spec = _KINDS[plural]
            user = f"system:serviceaccount:{namespace}:codeexec-agent"
            spec = {"source": {"agent": "flood"}, "requestedBy": user, **spec}
            record = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "spec": spec}
            await asyncio.sleep(after)
            async with turns:
                meta = {"name": f"flood-{os.urandom(6).hex()}"}
                response = await create(GROUP, VERSION, namespace, plural, record | {"metadata": meta})
                answer = await response.text()  # else the connection stays open until the garbage collector finds it
                assert response.status == 201, answer

        async def make(executions: int, sessions: int) -> int:
            """How many of them were made: the API server may turn requests away."""
            order = enumerate(in_turns(executions, sessions))
            made = (one(plural, number / rate if rate else 0) for number, plural in order)
            results = await asyncio.gather(*made, return_exceptions=True)
            return sum(one is None for one in results)

        yield make


async def run_codes(kubeconfig: str, namespace: str, loud: int, hostile: int) -> None:
    """Run so many codes with 0.8 MB of output, and so many that take long to read."""
    asked = Request(agent="flood", timeout_seconds=300, limits=Limits(**_LIMITS))
    codes = [b"fill(800_000)"] * loud + [b"a\n" * 400_000] * hostile
    async with CodeExecutionClient(ClusterRef(namespace, kubeconfig=kubeconfig)) as client:
        runs = (client.execute([PreparedBlock("python", code)], asked) for code in codes)
        await asyncio.gather(*runs, return_exceptions=True)


async def _main(kubeconfig: str, namespace: str, *numbers: str) -> None:
    *counts, rate = numbers
    executions, sessions, loud, hostile = map(int, counts)
    async with flooding(kubeconfig, namespace, float(rate)) as make:
        await asyncio.gather(make(executions, sessions), run_codes(kubeconfig, namespace, loud, hostile))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
