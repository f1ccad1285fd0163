"""A client that is newer than the cluster's CRDs: what they don't know is refused, and not dropped in silence."""

import pytest
from cluster_tools import SANDBOX, a_name

from codeexec_api import CodeSessionSpec, Source
from executor_client import ClusterRef, CodeExecutionClient, InvalidExecution


class NewerSpec(CodeSessionSpec):
    """Of a version to come."""

    read_only: bool | None = None


async def test_a_field_that_the_cluster_does_not_know_is_refused_by_name(kubeconfig, monkeypatch) -> None:
    kinds = "codeexec_api.v1alpha1.manifest._KINDS"
    monkeypatch.setattr(kinds, {NewerSpec: "CodeSession"})
    async with CodeExecutionClient(ClusterRef(kubeconfig=kubeconfig, namespace=SANDBOX)) as client:
        transport = await client.connect()
        plain = NewerSpec(source=Source(agent="skew"))
        await transport.create_session(a_name("session"), plain)  # what isn't used is not sent
        with pytest.raises(InvalidExecution, match=r'unknown field "spec.readOnly".*upgrade the codeexec'):
            await transport.create_session(a_name("session"), plain.model_copy(update={"read_only": True}))
