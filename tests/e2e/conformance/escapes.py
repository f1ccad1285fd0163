"""Escapes from containers that others published, by their public ids, and what stops each in a sandbox.

Names in small letters are scenarios of SandboxEscapeBench (UK AI Security Institute), T… are techniques of MITRE
ATT&CK. The ids of runc and containerd are those of the Go vulnerability database of 21 August 2026, from 2019 on. Of
the kernel's vulnerabilities these are examples: each stands for all that start with the same step.

`make generate` writes docs/security/known-escapes.md from this.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conformance import escape_attacks as tried
from conformance import network_attacks
from conformance.attacks import Attack, words
from conformance.remit import rows

PAGE = Path(__file__).parents[3] / "docs" / "security" / "known-escapes.md"


@dataclass(frozen=True)
class Escape:
    """The step without which these escapes don't work."""

    step: Attack
    ids: str
    defence: str


NO_NODE_FOLDERS = "No field requests a folder of the node. Admission rejects pods that mount one"
OWN_NAMESPACES = "Own PID, IPC and network namespaces, which admission requires"
NO_SOCKETS = "NetworkPolicy. seccomp allows `AF_UNIX` sockets only, or those of a permit"
NO_CAPABILITIES = "No capabilities, no new privileges. A user namespace, if the nodes support it"
READ_ONLY = "Read-only root. The user owns nothing outside the workspace. Landlock"
NO_SYSTEM_CALL = "seccomp: the runtime's profile, then ours"
NO_PRIVILEGED_CALL = f"{NO_CAPABILITIES}. {NO_SYSTEM_CALL}"

LAYERS: dict[str, tuple[Escape, ...]] = {
    "the node": (
        Escape(tried.connect_to_a_container_engine, "docker_socket", NO_NODE_FOLDERS),
        Escape(tried.write_to_a_folder_of_the_node, "hostpath_etc, CVE-2021-43816", NO_NODE_FOLDERS),
        Escape(tried.look_into_a_process_of_the_node, "pid_namespace", OWN_NAMESPACES),
        Escape(tried.see_the_sockets_of_the_node, "CVE-2020-15257", OWN_NAMESPACES),
        Escape(
            tried.open_a_disk_of_the_node,
            "privileged, GHSA-g54h-m393-cpwq",
            f"Admission rejects privileged pods. {NO_CAPABILITIES}",
        ),
        Escape(
            tried.read_a_token_of_the_api_server,
            "k8s_rbac_permissions, T1552.001",
            "No token is mounted. The service account has no rights",
        ),
        Escape(network_attacks.reach_the_api_server, "k8s_rbac_permissions, T1613", NO_SOCKETS),
        Escape(network_attacks.reach_the_kubelet, "T1609", NO_SOCKETS),
        Escape(tried.reach_the_localhost_of_the_node, "k8s_route_localnet, CVE-2020-8558", NO_SOCKETS),
        Escape(tried.address_the_metadata_of_a_cloud, "T1552.005", f"{NO_SOCKETS}. No permit opens this address"),
    ),
    "privileges": (
        Escape(tried.have_a_capability, "CVE-2022-29162, GHSA-c9cp-9c75-9v8c", NO_CAPABILITIES),
        Escape(tried.be_allowed_to_load_a_kernel_module, "sys_module", NO_CAPABILITIES),
        Escape(tried.mount_and_unmount, "sys_admin", NO_PRIVILEGED_CALL),
        Escape(
            tried.mount_a_hierarchy_of_cgroups,
            "cgroup_release_agent, CVE-2022-0492",
            NO_PRIVILEGED_CALL,
        ),
        Escape(tried.open_a_file_by_its_handle, "dac_read_search", NO_PRIVILEGED_CALL),
        Escape(
            tried.be_root_of_the_node,
            "CVE-2024-40635, CVE-2026-46680",
            "The pod names its user. Admission accepts no user of the image's choice",
        ),
        Escape(
            tried.belong_to_another_group,
            "CVE-2023-25173",
            "The pod names its group. Admission accepts no others",
        ),
        Escape(tried.gain_privileges_by_a_program, "CVE-2021-4034", "No new privileges"),
        Escape(
            tried.open_what_the_kernel_acts_on,
            "k8s_crio_escape, CVE-2022-0811, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
            f"{READ_ONLY}. The runtime mounts these files read-only",
        ),
    ),
    "the container runtime": (
        Escape(
            tried.find_an_open_folder_outside,
            "k8s_runc, CVE-2024-21626",
            "The runner passes no descriptors on. Admission accepts no working directory. A patched runc",
        ),
        Escape(
            tried.replace_what_others_start,
            "runc_overwrite, CVE-2019-5736, k8s_malicious_binary, CVE-2019-1002101",
            f"{READ_ONLY}. Agents may not exec into pods. Files don't travel by `kubectl cp`",
        ),
        Escape(
            tried.put_a_link_where_the_runtime_mounts,
            "CVE-2019-19921, CVE-2021-30465, CVE-2023-27561, CVE-2023-28642, CVE-2024-45310, CVE-2025-31133, "
            "CVE-2025-52565, CVE-2025-52881",
            f"{READ_ONLY}. One container in each pod, started once, which shares no volume that can be written to",
        ),
        Escape(
            tried.read_what_the_runtime_masks, "CVE-2025-31133, GHSA-7ww5-4wqc-m92c", "The runtime masks these paths"
        ),
        Escape(tried.make_a_cgroup, "CVE-2023-25809", "The runtime mounts cgroups read-only"),
        Escape(
            tried.be_without_a_limit_of_memory, "CVE-2025-47291", "Limits that admission requires. A patched containerd"
        ),
    ),
    "the kernel": (
        Escape(
            tried.make_a_user_namespace,
            "CVE-2021-22555, CVE-2021-33909, CVE-2022-0185, CVE-2022-0492, CVE-2022-25636, CVE-2023-0386",
            NO_SYSTEM_CALL,
        ),
        Escape(tried.configure_a_file_system, "CVE-2021-4154, CVE-2022-0185", NO_SYSTEM_CALL),
        Escape(
            tried.talk_to_the_packet_filter,
            "CVE-2022-25636, CVE-2022-34918, CVE-2023-32233, CVE-2024-1086",
            NO_SYSTEM_CALL,
        ),
        Escape(
            tried.load_a_program_into_the_kernel,
            "bpf_privesc, CVE-2017-16995, CVE-2020-8835, CVE-2021-3490, CVE-2022-23222, CVE-2023-2163",
            NO_SYSTEM_CALL,
        ),
        Escape(
            network_attacks.read_packets,
            "packet_socket, CVE-2017-7308, CVE-2020-14386",
            f"{NO_SOCKETS}. No capabilities",
        ),
        Escape(network_attacks.use_io_uring, "CVE-2022-29582, CVE-2023-2598, CVE-2024-0582", NO_SYSTEM_CALL),
        Escape(tried.use_a_keyring, "CVE-2016-0728, CVE-2022-0995", NO_SYSTEM_CALL),
        Escape(tried.count_events, "CVE-2022-1729, CVE-2023-5717", NO_SYSTEM_CALL),
        Escape(tried.open_a_rare_socket, "CVE-2021-26708, CVE-2025-21756, CVE-2026-31431", NO_SYSTEM_CALL),
    ),
}
"""What is tried under each runtime."""

ONLY_ANOTHER_KERNEL = Escape(
    tried.speak_to_the_kernel_of_the_node,
    "dirty_cow, CVE-2016-5195, dirty_pipe, CVE-2022-0847, CVE-2021-0920, CVE-2023-3269, CVE-2025-38236",
    "**Under runc: only a patched kernel.** Memory, pipes, files that can be read and `AF_UNIX` sockets are enough for "
    "these escapes, and all programs need them. Under gVisor: another kernel",
)
"""What is tried under gVisor only, because under runc nothing of ours stops it."""

PODS: dict[str, str] = {
    "privileged": "privileged",
    "folder of the node": "docker_socket, hostpath_etc, CVE-2021-43816",
    "a capability": "sys_admin, sys_module, dac_read_search, packet_socket",
    "processes of the node": "pid_namespace",
    "network of the node": "CVE-2020-15257",
    "token by default": "k8s_rbac_permissions",
    "sysctl": "k8s_crio_escape, CVE-2022-0811",
    "another folder": "k8s_runc, CVE-2024-21626",
    "second container": "CVE-2021-30465, CVE-2024-45310, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
    "init container": "CVE-2021-30465, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
    "terminal": "CVE-2025-52565",
    "startup probe": "CVE-2022-31030",
    "user that the image chooses": "CVE-2024-40635, CVE-2026-46680",
    "more groups": "CVE-2023-25173",
}
"""Settings of a pod that escapes need, by their names in `weaker_pods.WEAKER`."""

LEFT_OUT: dict[str, str] = {
    "CVE-2019-16884, CVE-2020-15157, CVE-2021-32760, GHSA-5j5w-g665-5m35, CVE-2022-23648, CVE-2023-25153, "
    "CVE-2025-47290, CVE-2026-41579, CVE-2026-47262, CVE-2026-53488": (
        "They need the node to pull or start an image of the attacker's. Policies list images by digest (R-18)"
    ),
    "CVE-2026-50195, CVE-2026-53489, CVE-2026-53492": (
        "They need a pod that is restored from a checkpoint of the attacker's, which is an image, too"
    ),
    "CVE-2021-41103, CVE-2024-25621": "They need a user on the node",
    "CVE-2022-23471, CVE-2025-64329": (
        "They need many calls of exec or attach, which code in a pod can't make and agents may not make"
    ),
    "CVE-2021-43784": "It needs an attacker who writes runc's configuration",
    "CVE-2021-21334": (
        "It mixes up the environment of containers that start at the same time. Sandboxes have none that differs (R-04)"
    ),
}
"""Escapes with no step that code in a pod could take, and why."""


def ids(escapes: Iterable[str]) -> set[str]:
    """The single ids."""
    return {one for listed in escapes for one in listed.split(", ")}


def tried_ids() -> set[str]:
    """Of all escapes that a test tries."""
    return ids([*(one.ids for layer in LAYERS.values() for one in layer), ONLY_ANOTHER_KERNEL.ids, *PODS.values()])


def page() -> str:
    """`docs/security/known-escapes.md`."""
    steps = [one for layer in LAYERS.values() for one in layer] + [ONLY_ANOTHER_KERNEL]
    parts = [
        "# Known escapes",
        "This page is generated from [escapes.py](../../tests/e2e/conformance/escapes.py); do not edit it. It lists "
        "escapes from containers that others published, and what stops each of them in a sandbox. `make conformance` "
        "tries them as [R-19](conformance.md).",
        "- Names such as `docker_socket` are the 18 scenarios of SandboxEscapeBench by the UK AI Security Institute. "
        "T-numbers are techniques of MITRE ATT&CK.\n"
        "- The list of runc and containerd is that of the Go vulnerability database of 21 August 2026, from 2019 on. "
        "Of the kernel's vulnerabilities, it has examples. Each stands for all others that need the same step.\n"
        "- No test exploits anything. Each test takes the step without which the escape can't work, in a form that "
        "changes nothing. The step must succeed in the control pod and fail in the sandbox. The control pod is "
        "privileged and shares processes, network and folders with the node.",
        "## From inside the sandbox",
        "Tried under runc and gVisor, except for the last row.",
        rows(
            ("to escape, code must", "escapes", "what stops it"),
            ((words(one.step), _listed(one.ids), one.defence) for one in steps),
        ),
        "## By a pod of the attacker's",
        "These escapes start with a pod that has a certain setting. The API server rejects such pods in a sandbox "
        "namespace, even from an administrator. It accepts the same pods where our admission policies don't apply.",
        rows(("setting", "escapes"), ((name, _listed(listed)) for name, listed in PODS.items())),
        "## Not tried",
        "Code in a pod can't take the first step of these, so there is nothing to try in a sandbox.",
        rows(("escapes", "reason"), ((_listed(listed), reason) for listed, reason in LEFT_OUT.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(escapes: str) -> str:
    return ", ".join(one if one[0].isupper() else f"`{one}`" for one in escapes.split(", "))


if __name__ == "__main__":
    PAGE.write_text(page())
