"""When the operator looks at the nodes: seldom, and at once for a pod whose node it doesn't know."""

from typing import Any

from factories import a_pod

from codeexec_operator.adapters import lookout
from codeexec_operator.core.surroundings import NodeView


class Played:
    """An API server with these nodes."""

    def __init__(self) -> None:
        self.names = ["node-1"]

    async def list_nodes(self) -> list[NodeView]:
        return [NodeView(name, "", 0, True, frozenset()) for name in self.names]

    async def list_api_servers(self) -> frozenset[str]:
        return frozenset()

    async def list_runtime_handlers(self) -> dict[str, str]:
        return {}


async def test_a_node_that_has_joined_is_looked_at_when_a_pod_is_there(monkeypatch: Any) -> None:
    monkeypatch.setattr(lookout, "_name_servers", lambda _: [])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    cluster: Any = Played()
    ours = lookout.Lookout(cluster, pod_ips=(), canary_port=0, never_permit=())
    await ours.open()
    cluster.names.append("node-2")

    async def known() -> set[str]:
        await ours.look()
        return {node.name for node in ours.view.nodes}

    ours.view_from(None, a_pod(node_name=""), a_pod(node_name="node-1"))
    assert await known() == {"node-1"}
    ours.view_from(a_pod(node_name="node-2"))
    assert await known() == {"node-1", "node-2"}
    await ours.close()
