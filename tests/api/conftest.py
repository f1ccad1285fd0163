"""The API tier: a real etcd and kube-apiserver with the chart's objects, and no operator, scheduler or node.

Each worker of pytest has a control plane of its own, which the kernel ends with the worker.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from chart.helm import pick, render
from chart.install import install
from cluster_tools import OPERATOR, SANDBOX, Admin, a_name
from control_plane import API_SERVER, CONTROLLERS, ControlPlane
from factories import IMAGE
from kubernetes import client, config
from pod_places import CHANGES, KEPT_FROM, POLICY, Place, wait_for_the_changes_policy, wait_for_the_policy
from weaker_pods import AGENT, a_hardened_pod, spec

JOBS = (
    "audit.checkpoints.enabled=true",
    "audit.checkpoints.signingKeySecret.name=checkpoint-key",
    "audit.checkpoints.claimName=checkpoints",
    "audit.export.enabled=true",
    "audit.export.claimName=export",
)
"""The default has no such jobs, and so no accounts of them."""
REPOSITORIES = "sandbox.allowedRepositories={" + IMAGE.partition("@")[0] + "}"
"""Of pods that are made from the objects of `factories`."""


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
        install(Admin(plane.kubeconfig), [SANDBOX], *JOBS, REPOSITORIES)
        yield plane.kubeconfig


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Admin:
    return Admin(kubeconfig)


# --- where pods are tried: test_pod_admission.py says what for ---


@pytest.fixture(scope="module")
def core(kubeconfig) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(kubeconfig))


@pytest.fixture(scope="module")
def version(core) -> client.VersionInfo:
    """Of the API server."""
    return client.VersionApi(core.api_client).get_code()


@pytest.fixture(scope="module")
def keeps(version) -> Callable[[str], bool]:
    """Whether this API server keeps a field of pods, or has a subresource; all that `KEPT_FROM` doesn't name it has."""
    minor = re.match(r"\d+", version.minor)
    assert minor, version
    return lambda what: int(minor[0]) >= KEPT_FROM.get(what, 0)


@pytest.fixture(scope="module")
def operator(kubeconfig) -> Place:
    """The sandbox namespace, seen with the rights of the operator."""
    api = config.new_client_from_config(kubeconfig)
    api.set_default_header("Impersonate-User", OPERATOR)
    return Place(client.CoreV1Api(api), SANDBOX)


@pytest.fixture(scope="module")
def make_place(admin, core) -> Callable[[], Place]:
    """Makes namespaces without Pod Security."""

    def make() -> Place:
        name = a_name("pods")
        admin.create_namespace(name)
        account = {"name": AGENT, "namespace": name}
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        return Place(core, name)

    return make


@pytest.fixture(scope="module")
def unguarded(make_place) -> Place:
    return make_place()


@pytest.fixture(scope="module")
def chart_policy(admin) -> Callable[..., AbstractContextManager[str]]:
    """Puts one of the chart's policies in force in a place, as it is with these values. Gives its name."""

    @contextmanager
    def put_in_force(place: Place, policy: str, **values: str) -> Iterator[str]:
        name = f"{place.namespace}-{policy}"
        settings = {"fullnameOverride": place.namespace, "sandbox.namespaces": "{" + place.namespace + "}", **values}
        objects = render(*(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
        kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        try:
            for kind in kinds:
                admin.apply(pick(objects, kind, name))
            yield name
        finally:
            for kind in kinds:
                admin.delete(kind, name)

    return put_in_force


HELD = "example.com/held"
"""A finalizer."""


@pytest.fixture(scope="module")
def old_pod(make_place) -> tuple[Place, str]:
    """A weak pod with a finalizer that was there before the policies. No scheduler knows of it, so it never runs."""
    place = make_place()
    weak = a_hardened_pod()
    spec(hostNetwork=True, schedulerName="nobody")(weak)
    weak["metadata"]["finalizers"] = [HELD]
    return place, place.create(weak)


@pytest.fixture(scope="module")
def guarded(admin, old_pod) -> Iterator[Place]:
    """A namespace that the deployed policies for pods are bound to, and nothing else."""
    place, _ = old_pod
    names = {POLICY: place.namespace, CHANGES: f"{place.namespace}-changes"}
    for policy, name in names.items():
        binding = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": policy,
                "validationActions": ["Deny"],
                "matchResources": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}
                },
            },
        }
        admin.apply(binding)
    try:
        wait_for_the_policy(place)
        wait_for_the_changes_policy(place)
        yield place
    finally:
        for name in names.values():
            admin.delete("validatingadmissionpolicybinding", name)
