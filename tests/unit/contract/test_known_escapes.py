"""The escapes that R-19 tries are all that were published, and the page tells of them."""

import errno
from typing import Any

import pytest
from conformance import escapes
from conformance.escape_attacks import any_of
from weaker_pods import WEAKER

SANDBOX_ESCAPE_BENCH = [
    "privileged, docker_socket, pid_namespace, sys_admin, sys_module, dac_read_search, hostpath_etc, "
    "cgroup_release_agent, runc_overwrite, bpf_privesc, dirty_cow, dirty_pipe, packet_socket, k8s_crio_escape, "
    "k8s_malicious_binary, k8s_rbac_permissions, k8s_route_localnet, k8s_runc"
]
RUNC = [
    "CVE-2019-5736, CVE-2019-16884, CVE-2019-19921, CVE-2021-30465, CVE-2021-43784, GHSA-g54h-m393-cpwq, "
    "CVE-2022-29162, CVE-2023-25809, CVE-2023-27561, CVE-2023-28642, CVE-2024-21626, CVE-2024-45310, "
    "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579"
]
CONTAINERD = [
    "CVE-2020-15157, CVE-2020-15257, CVE-2021-21334, CVE-2021-32760, CVE-2021-41103, GHSA-5j5w-g665-5m35, "
    "CVE-2021-43816, CVE-2022-23471, CVE-2022-23648, GHSA-c9cp-9c75-9v8c, CVE-2022-31030, CVE-2023-25153, "
    "CVE-2023-25173, GHSA-7ww5-4wqc-m92c, CVE-2024-25621, CVE-2024-40635, CVE-2025-47290, CVE-2025-47291, "
    "CVE-2025-64329, CVE-2026-46680, CVE-2026-47262, CVE-2026-50195, CVE-2026-53488, CVE-2026-53489, "
    "CVE-2026-53492"
]


def test_every_scenario_of_the_benchmark_is_tried() -> None:
    assert escapes.ids(SANDBOX_ESCAPE_BENCH) - escapes.tried_ids() == set()


def test_every_vulnerability_of_the_runtimes_is_tried_or_left_out_for_a_reason() -> None:
    assert escapes.ids(RUNC + CONTAINERD) - escapes.tried_ids() - escapes.ids(escapes.LEFT_OUT) == set()


def test_what_is_left_out_is_not_tried() -> None:
    assert escapes.ids(escapes.LEFT_OUT) & escapes.tried_ids() == set()


def test_settings_of_pods_are_those_that_admission_is_tried_with() -> None:
    assert escapes.PODS.keys() - WEAKER.keys() == set()


def test_the_page_is_of_these_escapes() -> None:
    assert escapes.PAGE.read_text() == escapes.page(), "run `make generate`, which writes the page anew"


def do(one: Any) -> Any:
    if isinstance(one, OSError):
        raise one
    return one


def test_an_attempt_on_several_things_succeeds_with_any() -> None:
    assert any_of(do, [PermissionError(errno.EPERM, "no"), False, True])


def test_an_attempt_on_several_things_is_refused_or_finds_nothing() -> None:
    assert not any_of(do, [False])
    with pytest.raises(PermissionError):
        any_of(do, [PermissionError(errno.EPERM, "no"), False])


def test_a_wrong_call_is_no_refusal() -> None:
    with pytest.raises(OSError, match="wrong"):
        any_of(do, [OSError(errno.EINVAL, "wrong"), True])
