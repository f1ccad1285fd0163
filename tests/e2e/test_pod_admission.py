"""No pod of a sandbox namespace is weaker than the operator's table of settings, whoever makes or changes it.

Pod Security answers before our policy and would hide it. So the deployed policy is bound to a namespace without Pod
Security as well, and every pod is tried in three places: there our policy must refuse it; in a sandbox namespace it
must be refused to the operator; and in a namespace with neither it must be accepted, which is the positive control.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chart.helm import pick, render
from cluster_tools import SANDBOX, SYSTEM, a_name, image, wait_for
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError

from codeexec_api import CodeExecution
from codeexec_api.names import SANDBOX_CONTAINER
from codeexec_operator.manifests.hardening import OWN_UIDS, SANDBOX_UID
from codeexec_operator.manifests.pod import build_pod

pytestmark = pytest.mark.e2e

Pod = dict[str, Any]
Change = Callable[[Pod], None]

POLICY = "codeexec-pods"
OPERATOR = f"system:serviceaccount:{SYSTEM}:codeexec-operator"
AN_IMAGE = "registry.example/sandbox@sha256:" + "a" * 64
OTHER_IMAGE = "registry.example/other@sha256:" + "b" * 64
AGENT = "codeexec-agent"
OWN_UID = OWN_UIDS[7]


def a_hardened_pod(*, image: str = AN_IMAGE, user_namespace: bool = False) -> Pod:
    """The product's pod, of no owner and no execution: the operator and the garbage collector leave it alone."""
    name = a_name("admission")
    execution = CodeExecution.parse(
        {
            "metadata": {"name": name, "namespace": SANDBOX, "uid": "0badcafe-0000"},
            "spec": {
                "source": {"agent": "e2e"},
                "payloadRef": {"name": name},
                "blocks": [{"language": "sh", "sha256": "0" * 64, "sizeBytes": 0}],
                "limits": {"cpu": "50m", "memory": "64Mi", "ephemeralStorage": "16Mi"},
            },
        }
    )
    pod = build_pod(execution, image=image, deadline_seconds=120, user_namespace=user_namespace)
    pod["metadata"] = {"name": name}
    return pod


def _change(thing: dict[str, Any], changes: dict[str, Any]) -> None:
    """Set these fields; take away those that are None."""
    thing.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del thing[key]


def metadata(**changes: Any) -> Change:
    return lambda pod: _change(pod["metadata"], changes)


def spec(**changes: Any) -> Change:
    return lambda pod: _change(pod["spec"], changes)


def context(**changes: Any) -> Change:
    return lambda pod: _change(pod["spec"]["securityContext"], changes)


def container(**changes: Any) -> Change:
    return lambda pod: _change(pod["spec"]["containers"][0], changes)


def container_context(**changes: Any) -> Change:
    return lambda pod: _change(pod["spec"]["containers"][0]["securityContext"], changes)


def limit(resource: str, value: str | None) -> Change:
    """Change the request and the limit alike."""

    def change(pod: Pod) -> None:
        resources = pod["spec"]["containers"][0]["resources"]
        same = dict(resources["limits"])
        _change(same, {resource: value})
        resources.update(requests=same, limits=same)

    return change


def volume(**source: Any) -> Change:
    return lambda pod: pod["spec"]["volumes"].append({"name": "other", **source})


def mount(**changes: Any) -> Change:
    return lambda pod: _change(pod["spec"]["containers"][0]["volumeMounts"][0], changes)


def together(*changes: Change) -> Change:
    def change(pod: Pod) -> None:
        for one in changes:
            one(pod)

    return change


def another_container(pod: Pod) -> None:
    pod["spec"]["containers"].append(pod["spec"]["containers"][0] | {"name": "other"})


def an_init_container(pod: Pod) -> None:
    pod["spec"]["initContainers"] = [pod["spec"]["containers"][0] | {"name": "other", "stdin": False}]


def a_device_of_a_claim(pod: Pod) -> None:
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]


def with_user_namespace(change: Change) -> Change:
    return together(spec(hostUsers=False), context(runAsUser=SANDBOX_UID), change)


TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
EXEC = {"exec": {"command": ["true"]}}
NO_ESCALATION = "spec.containers[0].securityContext.allowPrivilegeEscalation"
CAPABILITIES = "spec.containers[0].securityContext.capabilities"
RUN_AS_USER = "spec.securityContext.runAsUser"
LIMITS = "spec.containers[0].resources.limits"
MOUNTS = "spec.containers[0].volumeMounts"

# What is tried: the field that the refusal must name, and the change of a hardened pod.
WEAKER: dict[str, tuple[str, Change]] = {
    # shared with the node and between containers
    "network of the node": ("spec.hostNetwork", spec(hostNetwork=True)),
    "processes of the node": ("spec.hostPID", spec(hostPID=True)),
    "memory shared with the node": ("spec.hostIPC", spec(hostIPC=True)),
    "processes of other containers": ("spec.shareProcessNamespace", spec(shareProcessNamespace=True)),
    # who the code is
    "user of other sandboxes": (RUN_AS_USER, context(runAsUser=SANDBOX_UID)),
    "user of other sandboxes, and the users of the node": (
        RUN_AS_USER,
        together(spec(hostUsers=True), context(runAsUser=SANDBOX_UID)),
    ),
    "user of other pods": (RUN_AS_USER, context(runAsUser=1000)),
    "root": (RUN_AS_USER, context(runAsUser=0)),
    "user that the image chooses": (RUN_AS_USER, context(runAsUser=None)),
    "user below the range": (RUN_AS_USER, context(runAsUser=OWN_UIDS.start - 1)),
    "user beyond the range": (RUN_AS_USER, context(runAsUser=OWN_UIDS.stop)),
    "root in a user namespace": (RUN_AS_USER, with_user_namespace(context(runAsUser=0))),
    "user of the container": ("spec.containers[0].securityContext.runAsUser", container_context(runAsUser=0)),
    "group root": ("spec.securityContext.runAsGroup", context(runAsGroup=0)),
    "group of the container": ("spec.containers[0].securityContext.runAsGroup", container_context(runAsGroup=0)),
    "group of files": ("spec.securityContext.fsGroup", context(fsGroup=0)),
    "more groups": ("spec.securityContext.supplementalGroups", context(supplementalGroups=[0])),
    "groups of the image": (
        "spec.securityContext.supplementalGroupsPolicy",
        context(supplementalGroupsPolicy="Merge"),
    ),
    "root allowed": ("spec.securityContext.runAsNonRoot", context(runAsNonRoot=False)),
    "root allowed to the container": (
        "spec.containers[0].securityContext.runAsNonRoot",
        container_context(runAsNonRoot=False),
    ),
    "another account": ("spec.serviceAccountName", spec(serviceAccountName=AGENT)),
    "another account by its old name": ("spec.serviceAccountName", spec(serviceAccount=AGENT)),
    "token asked for": ("spec.automountServiceAccountToken", spec(automountServiceAccountToken=True)),
    "token by default": ("spec.automountServiceAccountToken", spec(automountServiceAccountToken=None)),
    # what the kernel lets it do
    "privileged": (
        "spec.containers[0].securityContext.privileged",
        container_context(privileged=True, allowPrivilegeEscalation=None),
    ),
    "escalation": (NO_ESCALATION, container_context(allowPrivilegeEscalation=True)),
    "escalation by default": (NO_ESCALATION, container_context(allowPrivilegeEscalation=None)),
    "a capability": (CAPABILITIES, container_context(capabilities={"drop": ["ALL"], "add": ["NET_RAW"]})),
    "a capability that Pod Security allows": (
        CAPABILITIES,
        container_context(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    ),
    "most capabilities": (CAPABILITIES, container_context(capabilities={"drop": ["NET_RAW"]})),
    "all capabilities of the runtime": (CAPABILITIES, container_context(capabilities=None)),
    "no context of the container": (
        "spec.containers[0].securityContext.runAsNonRoot",
        container(securityContext=None),
    ),
    "writable root": (
        "spec.containers[0].securityContext.readOnlyRootFilesystem",
        container_context(readOnlyRootFilesystem=False),
    ),
    "all of /proc": (
        "spec.containers[0].securityContext.procMount",
        with_user_namespace(container_context(procMount="Unmasked")),
    ),
    "no seccomp": ("spec.securityContext.seccompProfile", context(seccompProfile={"type": "Unconfined"})),
    "seccomp by default": ("spec.securityContext.seccompProfile", context(seccompProfile=None)),
    "seccomp of the node": (
        "spec.securityContext.seccompProfile",
        context(seccompProfile={"type": "Localhost", "localhostProfile": "open.json"}),
    ),
    "no seccomp for the container": (
        "spec.containers[0].securityContext.seccompProfile",
        container_context(seccompProfile={"type": "Unconfined"}),
    ),
    "no AppArmor": ("spec.securityContext.appArmorProfile", context(appArmorProfile={"type": "Unconfined"})),
    "no AppArmor for the container": (
        "spec.containers[0].securityContext.appArmorProfile",
        container_context(appArmorProfile={"type": "Unconfined"}),
    ),
    "no AppArmor by annotation": (
        "spec.containers[0].securityContext.appArmorProfile",
        metadata(annotations={"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"}),
    ),
    "SELinux": ("spec.securityContext.seLinuxOptions", context(seLinuxOptions={"type": "spc_t"})),
    "SELinux of the container": (
        "spec.containers[0].securityContext.seLinuxOptions",
        container_context(seLinuxOptions={"level": "s0:c1,c2"}),
    ),
    "Windows": (
        "spec.securityContext.windowsOptions",
        context(windowsOptions={"runAsUserName": "ContainerAdministrator"}),
    ),
    "operating system": ("spec.os", spec(os={"name": "linux"})),
    "sysctl": (
        "spec.securityContext.sysctls",
        context(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "0"}]),
    ),
    # what it runs
    "image by tag": ("spec.containers[0].image", container(image="registry.example/sandbox:1")),
    "image by nothing": ("spec.containers[0].image", container(image="sandbox")),
    "another program": ("spec.containers[0].command", container(command=["sleep", "600"])),
    "arguments": ("spec.containers[0].args", container(args=["--open"])),
    "another folder": ("spec.containers[0].workingDir", container(workingDir="/")),
    "environment": ("spec.containers[0].env", container(env=[{"name": "LD_PRELOAD", "value": "/tmp/x.so"}])),
    "environment of a field": (
        "spec.containers[0].env",
        container(env=[{"name": "CODEEXEC_EGRESS_TARGETS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    ),
    "environment of a Secret": ("spec.containers[0].envFrom", container(envFrom=[{"secretRef": {"name": "a"}}])),
    "hook": ("spec.containers[0].lifecycle", container(lifecycle={"preStop": EXEC})),
    "liveness probe": ("spec.containers[0].livenessProbe", container(livenessProbe=EXEC)),
    "readiness probe": ("spec.containers[0].readinessProbe", container(readinessProbe=EXEC)),
    "startup probe": ("spec.containers[0].startupProbe", container(startupProbe=EXEC)),
    "terminal": ("spec.containers[0].tty", container(tty=True)),
    "second container": ("spec.containers", another_container),
    "init container": ("spec.initContainers", an_init_container),
    "readiness gate": ("spec.readinessGates", spec(readinessGates=[{"conditionType": "example.com/ready"}])),
    # what it can write to and read from
    "folder of the node": ("spec.volumes", volume(hostPath={"path": "/"})),
    "Secret": ("spec.volumes", volume(secret={"secretName": "other"})),
    "ConfigMap": ("spec.volumes", volume(configMap={"name": "other"})),
    "projected token": ("spec.volumes", volume(projected=TOKEN)),
    "downward API": (
        "spec.volumes",
        volume(downwardAPI={"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}),
    ),
    "driver": ("spec.volumes", volume(csi={"driver": "csi.example.com"})),
    "persistent volume": ("spec.volumes", volume(persistentVolumeClaim={"claimName": "other"})),
    "NFS": ("spec.volumes", volume(nfs={"server": "192.0.2.7", "path": "/"})),
    "disk": ("spec.volumes", volume(emptyDir={"sizeLimit": "1Mi"})),
    "volume without a limit": ("spec.volumes", volume(emptyDir={"medium": "Memory"})),
    "volume with a limit that is none": ("spec.volumes", volume(emptyDir={"medium": "Memory", "sizeLimit": "0"})),
    "writable system folder": (MOUNTS, mount(mountPath="/opt/codeexec")),
    "part of a volume": (MOUNTS, mount(subPath="part")),
    "propagation of mounts": (MOUNTS, mount(mountPropagation="HostToContainer")),
    "block device": (
        "spec.containers[0].volumeDevices",
        together(
            volume(persistentVolumeClaim={"claimName": "other"}),
            container(volumeDevices=[{"name": "other", "devicePath": "/dev/other"}]),
        ),
    ),
    "termination log elsewhere": (
        "spec.containers[0].terminationMessagePath",
        container(terminationMessagePath="/workspace/log"),
    ),
    # how it finds others
    "DNS of the cluster": ("spec.dnsPolicy", spec(dnsPolicy="ClusterFirst", dnsConfig=None)),
    "DNS of the node": ("spec.dnsPolicy", spec(dnsPolicy="Default")),
    "DNS of somebody": ("spec.dnsPolicy", spec(dnsConfig={"nameservers": ["192.0.2.53"]})),
    "names of hosts": ("spec.hostAliases", spec(hostAliases=[{"ip": "192.0.2.7", "hostnames": ["other"]}])),
    "name of the host": ("spec.hostname", spec(hostname="other")),
    "full name of the host": ("spec.setHostnameAsFQDN", spec(setHostnameAsFQDN=True)),
    "addresses of services": ("spec.enableServiceLinks", spec(enableServiceLinks=True)),
    "port": ("spec.containers[0].ports", container(ports=[{"containerPort": 8000}])),
    "port of the node": ("spec.containers[0].ports", container(ports=[{"containerPort": 8000, "hostPort": 8000}])),
    # how much it gets
    "no limit of CPU": (LIMITS, limit("cpu", None)),
    "no limit of memory": (LIMITS, limit("memory", None)),
    "no limit of disk": (LIMITS, limit("ephemeral-storage", None)),
    "no resources": (LIMITS, container(resources=None)),
    "limit of CPU that is none": (LIMITS, limit("cpu", "0")),
    "limit of memory that is none": (LIMITS, limit("memory", "0")),
    "device": (LIMITS, limit("example.com/gpu", "1")),
    "device of a claim": ("spec.resourceClaims", a_device_of_a_claim),
    "resources of the pod": ("spec.resources", spec(resources={"limits": {"cpu": "1", "memory": "1Gi"}})),
    "less requested": (
        "spec.containers[0].resources.requests",
        lambda pod: pod["spec"]["containers"][0]["resources"].update(requests={"cpu": "1m"}),
    ),
    "no deadline": ("spec.activeDeadlineSeconds", spec(activeDeadlineSeconds=None)),
    "distant deadline": ("spec.activeDeadlineSeconds", spec(activeDeadlineSeconds=2**31 - 1)),
    "second run": ("spec.restartPolicy", spec(restartPolicy="OnFailure")),
    "time to resist": ("spec.terminationGracePeriodSeconds", spec(terminationGracePeriodSeconds=30)),
    # where it runs
    "node": ("spec.nodeName", spec(nodeName="codeexec-control-plane")),
    "label of the node": ("spec.nodeSelector", spec(nodeSelector={"kubernetes.io/os": "linux"})),
    "affinity": ("spec.affinity", spec(affinity={"podAntiAffinity": {}})),
    "spread": (
        "spec.topologySpreadConstraints",
        spec(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        ),
    ),
    "any node": ("spec.tolerations", spec(tolerations=[{"operator": "Exists"}])),
    "node of the control plane": (
        "spec.tolerations",
        spec(tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]),
    ),
    "node without a network": (
        "spec.tolerations",
        spec(tolerations=[{"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"}]),
    ),
    "scheduler": ("spec.schedulerName", spec(schedulerName="other")),
    "gate of the scheduler": ("spec.schedulingGates", spec(schedulingGates=[{"name": "example.com/gate"}])),
    "the priority of the operator": ("spec.priorityClassName", spec(priorityClassName="codeexec-operator")),
    "finalizer": ("metadata.finalizers", metadata(finalizers=["example.com/held"])),
    "priority over the system": ("spec.priorityClassName", spec(priorityClassName="system-node-critical")),
    # what network plugins and container runtimes read
    "network of a plugin": (
        "metadata.annotations",
        metadata(annotations={"k8s.v1.cni.cncf.io/networks": "other"}),
    ),
}

# Leaves of the pod's spec that may have other values; the table above tells which they may not have.
FREE = {"activeDeadlineSeconds", "volumes", "containers", "runtimeClassName"}
OPPOSITES = {"Never": "Always", "None": "Default", "RuntimeDefault": "Unconfined", "ALL": "NET_RAW"}
# What Kubernetes wants to be changed as well.
COMPANIONS: dict[tuple[str | int, ...], Change] = {
    ("hostNetwork",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("hostPID",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("hostIPC",): together(spec(hostUsers=None), context(runAsUser=OWN_UID)),
    ("containers", 0, "securityContext", "privileged"): container_context(allowPrivilegeEscalation=None),
}
# What Kubernetes wants to be there; without it there is no pod, so nothing for the policy to refuse.
REQUIRED = {
    ("securityContext", "seccompProfile", "type"),
    ("dnsConfig", "nameservers", 0),
    ("dnsConfig", "options", 0, "name"),
}


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(child, (*path, key))
    else:
        yield path


def _settings() -> list[tuple[str | int, ...]]:
    """Paths of all security settings of the product's pod: a new one gets its cases by being there."""
    whole = a_hardened_pod(user_namespace=True)["spec"]
    [only] = whole["containers"]
    kept = {key: value for key, value in whole.items() if key not in FREE}
    return list(_leaves(kept | {"containers": [{"securityContext": only["securityContext"]}]}))


def _opposite(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else OPPOSITES.get(str(value), f"{value}0")


def _changed(path: tuple[str | int, ...], *, removed: bool) -> Pod:
    pod = a_hardened_pod(user_namespace=True)
    node = pod["spec"]
    for key in path[:-1]:
        node = node[key]
    if removed:
        del node[path[-1]]
    else:
        node[path[-1]] = _opposite(node[path[-1]])
        COMPANIONS.get(path, together())(pod)
    return pod


class Place:
    """A namespace, and how its pods look to whoever asks."""

    def __init__(self, core: client.CoreV1Api, namespace: str) -> None:
        self.core = core
        self.namespace = namespace

    def stored(self, pod: Pod) -> Pod:
        """The spec that would be stored. Raises ApiException if the pod is refused."""
        return self.core.api_client.sanitize_for_serialization(
            self.core.create_namespaced_pod(self.namespace, pod, dry_run="All").spec
        )

    def refusal(self, pod: Pod) -> str:
        """What the API server says to this pod; empty if it would be accepted."""
        return _refusal(lambda: self.stored(pod))

    def create(self, pod: Pod) -> str:
        """Make the pod; its name."""
        return self.core.create_namespaced_pod(self.namespace, pod).metadata.name

    def patch(self, name: str, patch: Pod, subresource: str = "", *, dry_run: str | None = "All") -> str:
        """What the API server says to a strategic merge patch of a pod; empty if it is, or would be, accepted."""
        method = getattr(self.core, f"patch_namespaced_pod{subresource and '_' + subresource}")
        content_type = "application/strategic-merge-patch+json"
        return _refusal(lambda: method(name, self.namespace, patch, dry_run=dry_run, _content_type=content_type))


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ApiException as error:
        return json.loads(error.body)["message"]
    except ValidationError as error:  # the client's own: it wants the required fields
        return str(error)
    return ""


@pytest.fixture(scope="module")
def core(kubeconfig) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(kubeconfig))


@pytest.fixture(scope="module")
def operator(kubeconfig) -> Place:
    """The sandbox namespace, seen with the rights of the operator."""
    api = config.new_client_from_config(kubeconfig)
    api.set_default_header("Impersonate-User", OPERATOR)
    return Place(client.CoreV1Api(api), SANDBOX)


@pytest.fixture(scope="module")
def make_place(admin, core) -> Iterator[Callable[[], Place]]:
    """Makes namespaces without Pod Security."""
    made = []

    def make() -> Place:
        name = a_name("pods")
        admin.kubectl("create", "namespace", name)
        made.append(name)
        admin.kubectl("-n", name, "create", "serviceaccount", AGENT)
        wait_for("its service account", lambda: admin.exists("serviceaccount", "default", name))
        return Place(core, name)

    yield make
    admin.kubectl("delete", "namespace", *made, "--wait=false")


@pytest.fixture(scope="module")
def unguarded(make_place) -> Place:
    return make_place()


@pytest.fixture(scope="module")
def old_pod(make_place) -> tuple[Place, str]:
    """A weak pod that was there before the policy. No scheduler knows of it, so it never runs."""
    place = make_place()
    weak = a_hardened_pod()
    spec(hostNetwork=True, schedulerName="nobody")(weak)
    return place, place.create(weak)


@pytest.fixture(scope="module")
def guarded(admin, old_pod) -> Iterator[Place]:
    """A namespace that the deployed policy is bound to, and nothing else."""
    place, _ = old_pod
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": place.namespace},
        "spec": {
            "policyName": POLICY,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}},
        },
    }
    admin.apply(binding)
    try:
        _wait_for_the_policy(place)
        yield place
    finally:
        admin.kubectl("delete", "validatingadmissionpolicybinding", place.namespace)


def _wait_for_the_policy(place: Place) -> None:
    weak = a_hardened_pod()
    spec(hostPID=True)(weak)
    wait_for("the policy to be in force", lambda: "denied request: spec.hostPID" in place.refusal(weak))


@pytest.fixture(scope="module")
def scheduled_class(admin) -> Iterator[str]:
    """A RuntimeClass that adds overhead, a node selector and a toleration to pods, as those of gVisor nodes do."""
    name = a_name("class")
    label = {"example.com/runtime": name}
    toleration = {"key": "example.com/runtime", "operator": "Equal", "value": name, "effect": "NoSchedule"}
    admin.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": "runc",
            "overhead": {"podFixed": {"memory": "8Mi"}},
            "scheduling": {"nodeSelector": label, "tolerations": [toleration]},
        }
    )
    yield name
    admin.kubectl("delete", "runtimeclass", name)


def _is_ours(refusal: str, place: Place, field: str) -> bool:
    """The refusal is our policy's, by the binding of this place, and names the field first."""
    return f"'{POLICY}' with binding '{place.namespace}' denied request: {field} " in refusal


def _is_pod_security_s_or_ours(refusal: str) -> bool:
    return "violates PodSecurity" in refusal or f"'{POLICY}' with binding '{POLICY}' denied request" in refusal


@pytest.mark.parametrize("user_namespace", [False, True], ids=["own user", "user namespace"])
def test_the_product_s_pod_is_accepted(core, operator, guarded, unguarded, user_namespace):
    pod = a_hardened_pod(user_namespace=user_namespace)
    for place in (unguarded, guarded, operator, Place(core, SANDBOX)):
        assert place.refusal(pod) == ""


@pytest.mark.parametrize("user", [OWN_UIDS[0], OWN_UIDS[-1]], ids=["first", "last"])
def test_every_user_of_the_product_is_accepted(guarded, user):
    pod = a_hardened_pod()
    context(runAsUser=user)(pod)
    assert guarded.refusal(pod) == ""


@pytest.mark.parametrize(("field", "change"), WEAKER.values(), ids=WEAKER)
def test_pod_is_refused_with(unguarded, guarded, operator, field, change):
    pod = a_hardened_pod()
    change(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert _is_ours(guarded.refusal(pod), guarded, field)
    assert _is_pod_security_s_or_ours(operator.refusal(pod))


def test_every_rule_has_a_pod_that_breaks_it(admin):
    """Two rules name no field of their own: the tests of fields that are not listed, and of changes, are theirs."""
    rules = admin.get("validatingadmissionpolicy", POLICY)["spec"]["validations"]
    named = {rule["message"].split()[0] for rule in rules if "message" in rule}
    assert named - {field for field, _ in WEAKER.values()} == {"spec.runtimeClassName", "metadata.labels"}, (
        "which have tests of their own"
    )
    assert len(rules) - 2 == len([rule for rule in rules if "message" in rule])


@pytest.mark.parametrize("path", _settings(), ids=lambda path: ".".join(map(str, path)))
def test_setting_is_held_to(unguarded, guarded, operator, path):
    """Each security setting of the product's pod, turned around and taken away."""
    turned = _changed(path, removed=False)
    assert unguarded.refusal(turned) == "", "positive control"
    assert f"'{POLICY}' with binding" in guarded.refusal(turned)
    assert _is_pod_security_s_or_ours(operator.refusal(turned))

    without = _changed(path, removed=True)
    assert (unguarded.refusal(without) == "") is (path not in REQUIRED), "positive control"
    if path not in REQUIRED:
        unchanged = unguarded.stored(without) == unguarded.stored(a_hardened_pod(user_namespace=True))
        assert (guarded.refusal(without) == "") is unchanged, "what is the default anyway may be left out"


def test_runtime_class_that_the_chart_does_not_name_is_refused(unguarded, guarded, scheduled_class):
    pod = a_hardened_pod()
    spec(runtimeClassName=scheduled_class)(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert _is_ours(guarded.refusal(pod), guarded, "spec.runtimeClassName")


@pytest.fixture(scope="module")
def strict(admin, make_place, scheduled_class) -> Iterator[Place]:
    """A namespace with the chart's policy as it is where the platform owner requires a RuntimeClass."""
    place = make_place()
    settings = {
        "fullnameOverride": place.namespace,
        "sandbox.namespaces": "{" + place.namespace + "}",
        "policy.runtimeClassName": scheduled_class,
    }
    values = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    objects = render(*values)
    try:
        for kind in kinds:
            admin.apply(pick(objects, kind, f"{place.namespace}-pods"))
        _wait_for_the_policy(place)
        yield place
    finally:
        for kind in kinds:
            admin.kubectl("delete", kind, f"{place.namespace}-pods", "--ignore-not-found")


def test_required_runtime_class_brings_what_its_nodes_need(strict, scheduled_class):
    pod = a_hardened_pod()
    assert "denied request: spec.runtimeClassName must be" in strict.refusal(pod)
    spec(runtimeClassName=scheduled_class)(pod)
    stored = strict.stored(pod)
    assert stored["overhead"] == {"memory": "8Mi"}
    assert stored["nodeSelector"] == {"example.com/runtime": scheduled_class}
    assert "example.com/runtime" in [toleration.get("key") for toleration in stored["tolerations"]]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
        {"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"},
        {"key": "node.cilium.io/agent-not-ready", "operator": "Exists"},
    ],
    ids=lambda toleration: toleration.get("key", "any"),
)
def test_runtime_class_is_no_excuse_for_tolerating(unguarded, strict, scheduled_class, toleration):
    pod = a_hardened_pod()
    spec(runtimeClassName=scheduled_class, tolerations=[toleration])(pod)
    assert unguarded.refusal(pod) == "", "positive control"
    assert "denied request: spec.tolerations must be" in strict.refusal(pod)


DEBUGGER = {
    "name": "debugger",
    "image": OTHER_IMAGE,
    "targetContainerName": SANDBOX_CONTAINER,
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
ADDED_BY_KUBERNETES = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]
LARGER = {"cpu": "60m", "memory": "80Mi"}
CHANGES = {
    "another image": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}),
    "an image by tag": ("", "spec.containers", {"containers": [{"name": SANDBOX_CONTAINER, "image": "sandbox:1"}]}),
    "a container to debug": ("ephemeralcontainers", "spec.ephemeralContainers", {"ephemeralContainers": [DEBUGGER]}),
    "larger limits": (
        "resize",
        "spec.containers",
        {"containers": [{"name": SANDBOX_CONTAINER, "resources": {"requests": LARGER, "limits": LARGER}}]},
    ),
    "tolerations": ("", "spec.tolerations", {"tolerations": [*ADDED_BY_KUBERNETES, {"operator": "Exists"}]}),
}


@pytest.fixture(scope="module")
def running(core, guarded, unguarded) -> Iterator[Callable[[Place], str]]:
    """Names of hardened pods, one in each place, once they run."""
    places = (Place(core, SANDBOX), guarded, unguarded)
    names = {place.namespace: place.create(a_hardened_pod(image=image())) for place in places}

    def name_in(place: Place) -> str:
        name = names[place.namespace]
        phase = wait_for(f"pod {name} to start", lambda: _phase_beyond_pending(place, name))
        assert phase == "Running"
        return name

    yield name_in
    core.delete_namespaced_pod(names[SANDBOX], SANDBOX, grace_period_seconds=0)


def _phase_beyond_pending(place: Place, name: str) -> str | None:
    phase = place.core.read_namespaced_pod(name, place.namespace).status.phase
    return None if phase == "Pending" else phase


@pytest.mark.parametrize(("subresource", "field", "change"), CHANGES.values(), ids=CHANGES)
def test_running_pod_is_not_changed_to_have(core, guarded, unguarded, running, subresource, field, change):
    patch = {"spec": change}
    assert unguarded.patch(running(unguarded), patch, subresource) == "", "positive control"
    assert _is_ours(guarded.patch(running(guarded), patch, subresource), guarded, field)
    sandbox = Place(core, SANDBOX)
    assert f"'{POLICY}'" in sandbox.patch(running(sandbox), patch, subresource)


def test_running_pod_does_not_get_the_label_that_opens_the_network_of_another(guarded, unguarded, running):
    patch = {"metadata": {"labels": {"egress.codeexec.dev/execution": "1-2"}}}
    assert unguarded.patch(running(unguarded), patch) == "", "positive control"
    assert "egress.codeexec.dev/execution must not change" in guarded.patch(running(guarded), patch)
    assert guarded.patch(running(guarded), {"metadata": {"labels": {"app": "other"}}}) == "", "other labels may"


def test_deadline_of_a_running_pod_can_be_lowered(guarded, running):
    assert guarded.patch(running(guarded), {"spec": {"activeDeadlineSeconds": 100}}) == ""


def _held_and_let_go(place: Place, name: str) -> None:
    """A finalizer is put on the pod, the pod is deleted, the finalizer is taken away, the pod is gone."""
    gone = {"metadata": {"finalizers": None}}
    assert place.patch(name, {"metadata": {"finalizers": ["example.com/held"]}}, dry_run=None) == ""
    try:
        place.core.delete_namespaced_pod(name, place.namespace, grace_period_seconds=0)
        assert place.core.read_namespaced_pod(name, place.namespace).metadata.deletion_timestamp
    finally:
        assert place.patch(name, gone, dry_run=None) == ""
    wait_for("the pod to be gone", lambda: name not in _pods(place))


def _pods(place: Place) -> list[str]:
    return [pod.metadata.name for pod in place.core.list_namespaced_pod(place.namespace).items]


def test_hardened_pod_can_be_deleted(guarded):
    _held_and_let_go(guarded, guarded.create(a_hardened_pod()))


def test_weak_pod_from_before_the_policy_can_be_deleted_but_not_changed(guarded, old_pod):
    place, name = old_pod
    image_of_others = {"spec": {"containers": [{"name": SANDBOX_CONTAINER, "image": OTHER_IMAGE}]}}
    assert _is_ours(place.patch(name, image_of_others), guarded, "spec.containers")
    assert place.patch(name, {"metadata": {"labels": {"example.com/seen": "yes"}}}) == ""
    _held_and_let_go(place, name)


def test_the_policy_is_written_for_the_fields_that_there_are(admin):
    """The API server checks the types of the rules against its own kinds, and has nothing to say."""

    def checked() -> dict[str, Any] | None:
        policy = admin.get("validatingadmissionpolicy", POLICY)
        status = policy.get("status", {})
        return status if status.get("observedGeneration") == policy["metadata"]["generation"] else None

    assert not wait_for("the rules to be checked", checked).get("typeChecking")
