"""What each role may do: the one table that the chart's Roles, and what the API server says, are held against.

Rights map (API group, resource) to verbs; a subresource follows a slash. All of them hold in a sandbox namespace only,
but those that are called EVERYWHERE, and those AT_HOME, which is the operator's own namespace. Where a right is to
single objects, their names follow the resource: those are called BY_NAME.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

Rights: TypeAlias = dict[tuple[str, str], set[str]]
NamedRights: TypeAlias = dict[tuple[str, str, str], set[str]]
Cell: TypeAlias = tuple[str, str, str]
"""API group, resource, verb."""

AGENT: Rights = {
    ("codeexec.dev", "codeexecutions"): {"create", "get", "list", "watch", "patch"},
    ("codeexec.dev", "codesessions"): {"create", "get", "list", "watch", "patch"},
    ("coordination.k8s.io", "leases"): {"create", "patch", "delete"},
    ("", "secrets"): {"create"},
    ("", "configmaps"): {"get"},
    ("", "pods/log"): {"get"},
}
APPROVER: Rights = {
    ("codeexec.dev", "codeexecutions"): {"get", "list", "watch", "patch"},
    ("codeexec.dev", "codesessions"): {"get", "list", "watch", "patch"},
    ("codeexec.dev", "executionapprovals"): {"create", "get", "list", "watch", "patch"},
    ("codeexec.dev", "executionpolicies"): {"get", "list", "watch"},
    ("codeexec.dev", "sandboxpools"): {"get", "list", "watch"},
    ("", "events"): {"list"},
    ("", "secrets"): {"get"},
    ("", "configmaps"): {"get"},
    ("", "pods/log"): {"get"},
}
VIEWER: Rights = {
    ("codeexec.dev", "codeexecutions"): {"get", "list", "watch"},
    ("codeexec.dev", "codesessions"): {"get", "list", "watch"},
    ("codeexec.dev", "executionapprovals"): {"get", "list", "watch"},
    ("codeexec.dev", "executionpolicies"): {"get", "list", "watch"},
    ("codeexec.dev", "sandboxpools"): {"get", "list", "watch"},
    ("", "events"): {"list"},
    ("", "configmaps"): {"get"},
    ("", "pods/log"): {"get"},
}
VIEWER_EVERYWHERE: Rights = {
    ("codeexec.dev", "codeexecutions"): {"get", "list", "watch"},
    ("codeexec.dev", "codesessions"): {"get", "list", "watch"},
    ("codeexec.dev", "executionapprovals"): {"get", "list", "watch"},
    ("codeexec.dev", "executionpolicies"): {"get", "list", "watch"},
    ("codeexec.dev", "sandboxpools"): {"get", "list", "watch"},
}
"""What the built-in role "view" gets in addition, in all namespaces: nothing that is not ours."""
OPERATOR: Rights = {
    ("codeexec.dev", "codeexecutions"): {"get", "list", "watch"},
    ("codeexec.dev", "codeexecutions/status"): {"patch"},
    ("codeexec.dev", "codesessions"): {"get", "list", "watch"},
    ("codeexec.dev", "codesessions/status"): {"patch"},
    ("codeexec.dev", "sandboxpools"): {"list", "watch", "create"},
    ("codeexec.dev", "sandboxpools/status"): {"patch"},
    ("codeexec.dev", "executionpolicies"): {"get", "list", "watch"},
    ("codeexec.dev", "executionpolicies/status"): {"patch"},
    ("codeexec.dev", "executionapprovals"): {"list", "watch"},
    ("", "pods"): {"list", "watch", "create", "patch", "delete"},
    ("networking.k8s.io", "networkpolicies"): {"list", "create", "delete"},
    ("", "pods/attach"): {"get", "create"},
    ("", "secrets"): {"get", "list", "watch", "create", "delete"},
    ("", "configmaps"): {"create", "list", "delete"},
    ("coordination.k8s.io", "leases"): {"get", "list", "delete"},
    ("events.k8s.io", "events"): {"create"},
}
OPERATOR_BY_NAME: NamedRights = {
    ("", "configmaps", "codeexec-sealing-key"): {"patch"},
}
OPERATOR_AT_HOME: Rights = {
    ("coordination.k8s.io", "leases"): {"create"},
}
"""No rule limits "create" to a name: the Lease below."""
OPERATOR_AT_HOME_BY_NAME: NamedRights = {
    ("", "secrets", "codeexec-sealing"): {"get", "patch"},
    ("", "configmaps", "codeexec-operator"): {"get", "list", "watch"},
    **{("coordination.k8s.io", "leases", f"codeexec-operator-{shard}"): {"get"} for shard in range(1, 16)},
    ("coordination.k8s.io", "leases", "codeexec-operator"): {"get", "patch"},
    ("", "services", "codeexec-canary"): {"get"},
}
"""The keys that small payloads are sealed with, its configuration, the Lease that one replica leads by, and the address
of the canary. It has no other right in its own namespace."""
OPERATOR_IN_DEFAULT: Rights = {
    ("discovery.k8s.io", "endpointslices"): {"list"},
}
"""The addresses of the API server are in the namespace `default`."""
CHECKPOINTS_AT_HOME: Rights = {
    ("", "pods"): {"list"},
    ("", "pods/log"): {"get"},
}
"""Of the job that signs checkpoints, if the values ask for it: to read the operator's log, and nothing else."""
EXPORT: Rights = {
    ("codeexec.dev", "codeexecutions"): {"get", "list"},
    ("codeexec.dev", "codesessions"): {"get", "list"},
}
"""Of the job that exports records, if the values ask for it. In its own namespace it has CHECKPOINTS_AT_HOME."""
EXPORT_BY_NAME: NamedRights = {
    ("", "configmaps", "codeexec-export"): {"get", "patch"},
}
OPERATOR_THAT_DELETES: Rights = OPERATOR | {
    ("codeexec.dev", "codeexecutions"): {"get", "list", "watch", "delete"},
    ("codeexec.dev", "codesessions"): {"get", "list", "watch", "delete"},
}
"""If the values limit how long records are kept."""
OPERATOR_THAT_DELETES_BY_NAME: NamedRights = OPERATOR_BY_NAME | {
    ("", "configmaps", "codeexec-export"): {"get"},
}
OPERATOR_EVERYWHERE: Rights = {
    ("", "nodes"): {"list"},
    ("node.k8s.io", "runtimeclasses"): {"list"},
}


def cells(rights: Mapping[tuple[str, str], Iterable[str]]) -> set[Cell]:
    """The table as single rights, to compare and subtract."""
    return {(group, resource, verb) for (group, resource), verbs in rights.items() for verb in verbs}
