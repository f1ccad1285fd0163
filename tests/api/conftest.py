"""The API tier: a real etcd and kube-apiserver with the chart's objects, and no operator, scheduler or node.

Each worker of pytest has a control plane of its own, which the kernel ends with the worker.
"""

from collections.abc import Iterator

import pytest
from chart.install import install
from cluster_tools import SANDBOX, Admin
from control_plane import API_SERVER, CONTROLLERS, ControlPlane


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With those controllers that an API server doesn't do without: what is in a namespace, and who counts a quota."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), programs=(*API_SERVER, *CONTROLLERS)) as plane:
        yield plane


@pytest.fixture(scope="session")
def kubeconfig(plane: ControlPlane) -> Iterator[str]:
    """The administrator's. The chart is installed, and its policies are in force."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", plane.kubeconfig)
        install(Admin(plane.kubeconfig), [SANDBOX])
        yield plane.kubeconfig


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Admin:
    return Admin(kubeconfig)
