"""Lists hold what is asked for: the API server leaves out the rest, not the client."""

from cluster_tools import SANDBOX, a_name, an_execution

from codeexec_api import Phase
from executor_client import ClusterRef, CodeExecutionClient

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}


async def test_executions_of_a_phase_are_chosen_by_the_api_server(kubeconfig, admin) -> None:
    made = {phase: a_name("listed") for phase in (Phase.SUCCEEDED, Phase.AWAITING_APPROVAL)}
    for phase, name in made.items():
        admin.create(an_execution(name, [BLOCK]))
        admin.patch("codeexecution", name, {"status": {"phase": phase.value}}, SANDBOX, subresource="status")
    async with CodeExecutionClient(ClusterRef(kubeconfig=kubeconfig, namespace=SANDBOX)) as client:
        everything = {one.metadata.name for one in await client.list_executions()}
        transport = await client.connect()
        waiting = {one.metadata.name async for one in transport.list(Phase.AWAITING_APPROVAL)}
        assert {one.metadata.name for one in await client.list_waiting()} == waiting
    assert set(made.values()) <= everything
    assert made[Phase.AWAITING_APPROVAL] in waiting
    assert made[Phase.SUCCEEDED] not in waiting
