"""The product's pod, and what makes it weaker: each change with the field that admission has to name."""

from collections.abc import Callable
from typing import Any

from cluster_tools import SANDBOX, a_name

from codeexec_api import CodeExecution
from codeexec_operator.manifests.hardening import OWN_UIDS, SANDBOX_UID
from codeexec_operator.manifests.pod import build_pod

Pod = dict[str, Any]
Change = Callable[[Pod], None]

REPOSITORY = "registry.example:5000/codeexec/sandbox"
"""That of the chart's least values, which releases of tests allow."""
AN_IMAGE = f"{REPOSITORY}@sha256:{'b' * 64}"
AGENT = "codeexec-agent"


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


def _from(repository: str) -> str:
    return f"{repository}@sha256:{'b' * 64}"


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


def request(resource: str, value: str) -> Change:
    return lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update({resource: value})


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
REQUESTS = "spec.containers[0].resources.requests"
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
    "image by tag": ("spec.containers[0].image", container(image="registry.example:5000/codeexec/sandbox:1")),
    "image of another registry": (
        "spec.containers[0].image",
        container(image=_from("elsewhere.example/codeexec/sandbox")),
    ),
    "image below its repository": ("spec.containers[0].image", container(image=_from(f"{REPOSITORY}/more"))),
    "image of a longer name": ("spec.containers[0].image", container(image=_from(f"{REPOSITORY}es"))),
    "image with a port for a tag": ("spec.containers[0].image", container(image=_from(f"{REPOSITORY}:5000/more"))),
    "image of a shorter name": ("spec.containers[0].image", container(image=_from("registry.example:5000/codeexec"))),
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
    "name of the host, whatever it is": ("spec.hostnameOverride", spec(hostnameOverride="other")),
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
    "no CPU requested": (REQUESTS, request("cpu", "0")),
    "no memory requested": (REQUESTS, request("memory", "0")),
    "no disk requested": (REQUESTS, request("ephemeral-storage", "0")),
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
