"""Objects for the API server, made of their specs."""

from typing import Any, Final

from codeexec_api.names import API_VERSION, APPROVAL_KIND, EXECUTION_KIND, POOL_KIND, SESSION_KIND
from codeexec_api.v1alpha1.approval import ExecutionApprovalSpec
from codeexec_api.v1alpha1.execution import CodeExecutionSpec
from codeexec_api.v1alpha1.pool import SandboxPoolSpec
from codeexec_api.v1alpha1.session import CodeSessionSpec

AnySpec = CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec | ExecutionApprovalSpec

_KINDS: Final = {
    CodeExecutionSpec: EXECUTION_KIND,
    CodeSessionSpec: SESSION_KIND,
    SandboxPoolSpec: POOL_KIND,
    ExecutionApprovalSpec: APPROVAL_KIND,
}


def manifest(*, name: str, namespace: str, spec: AnySpec) -> dict[str, Any]:
    """An object with this spec, in the form that the API server takes."""
    kind = _KINDS[type(spec)]
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.dump(),
    }
