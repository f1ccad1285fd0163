"""What tests need to look at the cluster and to act on it as its administrator, and waits with a name."""

import base64
import functools
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml
from image_release.signing import signing_key, statement
from kube import DEFAULT_SANDBOX as DEFAULT_SANDBOX
from kube import SANDBOX, Kube, Object, Wait
from waits import SECONDS, TERMINAL, Waits, phase_of

from codeexec_api import sealing

T = TypeVar("T")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

ROOT = Path(__file__).parents[2]
SYSTEM = "codeexec-system"
AGENT = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
OPERATOR = f"system:serviceaccount:{SYSTEM}:codeexec-operator"
QUOTA = "no-more-pods"


def image(which: str = "SANDBOX_IMAGE") -> str:
    """Reference by digest of an image that `make images` has pushed."""
    lines = (ROOT / ".codeexec" / "images.env").read_text().split()
    return dict(line.split("=", 1) for line in lines)[which]


def signatures(*references: str) -> list[str]:
    """Signatures of images by the key of `make images`, which the release trusts, for a policy."""
    key = signing_key()
    return [key.sign(statement(one)) for one in references]


def wait_for(what: str, probe: Callable[[], T], seconds: float = SECONDS) -> T:
    """The first true value of `probe`; fails, saying what was awaited, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.1)
    return value


@functools.cache
def whoami(kubeconfig: str) -> str:
    """Name by which the cluster knows whose kubeconfig this is."""
    review = Kube(kubeconfig).create({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    return review["status"]["userInfo"]["username"]


class Admin(Waits):
    """The administrator, or the user of another kubeconfig. kubectl is for tests whose subject it is."""

    @property
    def me(self) -> str:
        return whoami(self.kubeconfig)

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": self.kubeconfig}
        return subprocess.run(
            ["kubectl", *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=120
        )

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.try_kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def pod(self, namespace: str, name: str) -> Object:
        return self.get("pod", name, namespace)

    def create_namespace(self, name: str, **labels: str) -> None:
        """Create a namespace in which pods can be made: Kubernetes gives it its service account a moment later."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self.wait_until("its service account", "serviceaccount", "default", bool, namespace=name)

    def execution(self, name: str) -> Object:
        return self.get("codeexecution", name)

    def phase(self, name: str) -> str:
        return phase_of(self.execution(name))

    def running_execution(self, agent: str, seconds: float = SECONDS) -> str:
        """Name of the execution of this agent, once its code runs; fails at once when one ends without that."""
        # The table that the API server makes: the records themselves are many, and some are large.
        table = self.connection.json("GET", self.resource("cex").path(SANDBOX), accept=TABLE, includeObject="None")
        columns = [column["name"] for column in table["columnDefinitions"]]
        for row in table["rows"]:
            cells = dict(zip(columns, row["cells"], strict=True))
            if (cells["Agent"], cells["Phase"]) == (agent, "Running"):
                return cells["Name"]
        wait = Wait(f"code of agent {agent} to run", seconds)
        for change in self.changes("cex", SANDBOX, wait, since=table["metadata"]["resourceVersion"]):
            for record in (event.object for event in change if event.object["spec"]["source"]["agent"] == agent):
                wait.see(change[0])
                if phase_of(record) == "Running":
                    return record["metadata"]["name"]
                assert phase_of(record) not in TERMINAL, f"waited for {wait.what}, but it never did: {wait.seen()}"
        raise wait.in_vain()

    def wait_for_output(self, name: str, text: str) -> None:
        """Until the code of a running execution has written this, as the log of its pod tells, or it has ended.

        The pod may have run others, and the API server gives logs from a whole second on: each frame names its own.
        """
        record = self.execution(name)
        ours = f'"{record["metadata"]["uid"]}"'

        def written() -> bool:
            lines = self.logs(SANDBOX, record["status"]["podName"]).splitlines()
            return text in "".join(json.loads(line).get("data", "") for line in lines if ours in line)

        wait_for(f"{name} to write {text!r} or to end", lambda: written() or self.phase(name) in TERMINAL)
        assert written(), f"{name} ended as {self.phase(name)} without having written {text!r}"

    def token(self, account: str, namespace: str = SANDBOX, hours: int = 3) -> str:
        """A new one of a service account."""
        path = self.resource("serviceaccount").path(namespace, account, "token")
        return self.connection.json("POST", path, {"spec": {"expirationSeconds": hours * 3600}})["status"]["token"]

    def submit_to(self, name: str, code: str, session: str, **spec: Any) -> None:
        """Submit to a session, with the limits that tests make sessions with unless others are given."""
        limits = {"cpu": "200m", "memory": "96Mi"}
        self.submit(name, code, **{"sessionRef": {"name": session}, "limits": limits, **spec})

    def submit(self, name: str, *codes: str, payload: Mapping[str, bytes] | None = None, **spec: Any) -> None:
        """Create a CodeExecution and its payload directly, as a client of another make might."""
        blocks = [{"language": "python", **announce(code.encode())} for code in codes]
        contents = {f"block-{index}": code.encode() for index, code in enumerate(codes)} if payload is None else payload
        self.create(a_secret(name, contents), an_execution(name, blocks, **{"requestedBy": self.me, **spec}))


def announce(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "sizeBytes": len(content)}


def a_secret(name: str, contents: Mapping[str, bytes], execution: str | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "codeexec.dev/payload",
        "metadata": {
            "name": name,
            "namespace": SANDBOX,
            "labels": {"codeexec.dev/execution": execution or name},
        },
        "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
    }


def _requested(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only this default needs the environment, which the component tier doesn't have."""
    return spec if "requestedBy" in spec else {"requestedBy": whoami(os.environ["KUBECONFIG"]), **spec}


def an_execution(name: str, blocks: Sequence[Mapping[str, Any]], **spec: Any) -> dict[str, Any]:
    """Requested by the administrator, unless another user is given."""
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeExecution",
        "metadata": {"name": name, "namespace": SANDBOX},
        "spec": {
            "source": {"agent": "e2e"},
            "payloadRef": {"name": name},
            "blocks": blocks,
            "timeoutSeconds": 20,
            **_requested(spec),
        },
    }


def a_sealed_execution(
    admin: Admin, name: str, code: str, *, sealed_for: str | None = None, **spec: Any
) -> dict[str, Any]:
    """As a client of another make might create it, with the key that is published at this moment."""
    published = admin.get("configmap", "codeexec-sealing-key")["data"]
    payload = sealing.seal({"block-0": code.encode()}, published, SANDBOX, sealed_for or name)
    block = {"language": "python", **announce(code.encode())}
    small = {"cpu": "100m", "memory": "64Mi"}
    made = an_execution(name, [block], **{"requestedBy": admin.me, "limits": small, **spec})
    del made["spec"]["payloadRef"]
    made["spec"]["sealedPayload"] = payload.dump()
    return made


def a_session(name: str, **spec: Any) -> dict[str, Any]:
    """Requested by the administrator, unless another user is given."""
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeSession",
        "metadata": {"name": name, "namespace": SANDBOX},
        "spec": {"source": {"agent": "e2e"}, **_requested(spec)},
    }


def a_name(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{os.urandom(3).hex()}"


def helm(kubeconfig: str, *arguments: str) -> str:
    """What Helm says, of the release's own namespace."""
    done = subprocess.run(
        ["helm", *arguments, "--namespace", SYSTEM],
        env=os.environ | {"KUBECONFIG": kubeconfig},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def upgrade_release(kubeconfig: str, *settings: str) -> None:
    """These settings beside those that it has, and until the operator that has them is there alone."""
    chart = str(ROOT / "charts" / "codeexec")
    helm(kubeconfig, "upgrade", "codeexec", chart, "--reuse-values", "--wait", "--timeout", "2m", *settings)
    admin = Admin(kubeconfig)
    wait_for_operator(admin, admin.get("deployment", "codeexec-operator", SYSTEM))


def use_up_the_quota(admin: Admin) -> None:
    """No room is left for another pod in the namespace, and the API server knows. Delete QUOTA to make room."""
    meta = {"name": QUOTA, "namespace": SANDBOX}
    admin.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"pods": "0"}}})
    counted = "the quota to be counted"
    admin.wait_until(counted, "resourcequota", QUOTA, lambda found: found.get("status", {}).get("used"))


def an_approval(execution: dict[str, Any], by: str, **changes: Any) -> dict[str, Any]:
    """That of an execution that waits for it, by this user; `changes` are of its spec."""
    meta = execution["metadata"]
    until = datetime.now(UTC) + timedelta(minutes=10)
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "ExecutionApproval",
        "metadata": {
            "name": a_name(meta["name"]),
            "namespace": meta.get("namespace", SANDBOX),
            "labels": {"codeexec.dev/execution": meta["name"]},
        },
        "spec": {
            "executionRef": {
                "name": meta["name"],
                "uid": meta["uid"],
                "requestedBy": execution["spec"]["requestedBy"],
            },
            "decision": "Approve",
            "grants": execution["status"]["approval"]["grants"],
            "approver": by,
            "expiresAt": until.isoformat().replace("+00:00", "Z"),
            **changes,
        },
    }


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def kubeconfig_with_token(kubeconfig: str, token: str) -> Object:
    """For the cluster of that kubeconfig's current context, with the rights of the token and no others."""
    raw = yaml.safe_load(Path(kubeconfig).read_text())
    [current] = [one["context"] for one in raw["contexts"] if one["name"] == raw["current-context"]]
    [cluster] = [one for one in raw["clusters"] if one["name"] == current["cluster"]]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [_with_certificate(cluster, Path(kubeconfig).parent)],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": cluster["name"], "user": "it"}}],
        "current-context": "it",
    }


def _with_certificate(cluster: Object, folder: Path) -> Object:
    """A path is relative to the kubeconfig's folder, so the certificate itself goes into a copy elsewhere."""
    settings = dict(cluster["cluster"])
    if path := settings.pop("certificate-authority", None):
        settings["certificate-authority-data"] = base64.b64encode((folder / path).read_bytes()).decode()
    return {**cluster, "cluster": settings}


def operator_pod(admin: Admin, release: str = "codeexec", namespace: str = SYSTEM) -> Object:
    """The one that leads, once there is one that is not going."""

    def leader() -> Object | None:
        holder = admin.get("lease", f"{release}-operator", namespace)["spec"].get("holderIdentity") or ""
        pods = admin.list("pod", namespace, labels="app.kubernetes.io/component=operator")
        staying = (one for one in pods if "deletionTimestamp" not in one["metadata"])
        return next((one for one in staying if holder.startswith(f"{one['metadata']['name']}_")), None)

    return wait_for("an operator to lead", leader)


def a_policy(namespace: str = SANDBOX, **spec: Any) -> Object:
    """An ExecutionPolicy that allows the sandbox image."""
    meta = {"name": "default", "namespace": namespace}
    spec = {"images": [image()], **spec}
    return {"apiVersion": "codeexec.dev/v1alpha1", "kind": "ExecutionPolicy", "metadata": meta, "spec": spec}


@contextmanager
def policies(admin: Admin) -> Iterator[Callable[..., None]]:
    """Puts ExecutionPolicies into the sandbox namespace, each until the operator knows it, and takes the last one away.

    A harmless one comes before that: nobody can tell when the operator knows that there is none.
    """
    put = lambda **spec: put_policy(admin, a_policy(**spec))  # noqa: E731
    yield put
    put(maxLimits={"cpu": "1", "memory": "1Gi"})
    admin.delete("executionpolicy", "default")


def put_policy(admin: Admin, policy: Object) -> None:
    """Put an ExecutionPolicy into its namespace, and wait until the operator knows it."""
    admin.apply(policy)
    where = policy["metadata"]["namespace"]
    admin.wait_until("the operator to know the policy", "executionpolicy", "default", _is_known, namespace=where)


def _is_known(policy: Object) -> bool:
    return policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"]


def restart_operator(admin: Admin) -> None:
    """As `kubectl rollout restart` does it, and until the new replicas are there alone."""
    annotations = {"tests/restarted-at": datetime.now(UTC).isoformat()}
    patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    wait_for_operator(admin, admin.patch("deployment", "codeexec-operator", patch, SYSTEM))


def scale_operator(admin: Admin, replicas: int) -> None:
    """And wait until so many replicas are there."""
    patch = {"spec": {"replicas": replicas}}
    wait_for_operator(admin, admin.patch("deployment", "codeexec-operator", patch, SYSTEM))


def wait_for_operator(admin: Admin, deployment: Object) -> None:
    """Until the pods are there that this version of the Deployment asks for, and no others."""
    labels = ",".join(f"{key}={value}" for key, value in deployment["spec"]["selector"]["matchLabels"].items())
    what = f"{deployment['spec']['replicas']} replicas of the operator alone"
    admin.wait_until_all(what, "pod", lambda pods: are_all_of(deployment, pods), namespace=SYSTEM, labels=labels)


def are_all_of(deployment: Object, pods: Sequence[Object]) -> bool:
    """True if these are as many as wanted, ready, made from its template, and none is going: it may still lead."""
    annotations = deployment["spec"]["template"]["metadata"].get("annotations", {}).items()
    return len(pods) == deployment["spec"]["replicas"] and all(
        is_ready(pod)
        and "deletionTimestamp" not in pod["metadata"]
        and annotations <= pod["metadata"].get("annotations", {}).items()
        for pod in pods
    )


def age_the_sealing_key(admin: Admin, by: timedelta) -> str:
    """Name of the key that counts, which has been there for so much longer from now on."""
    secret = admin.get("secret", "codeexec-sealing", SYSTEM)
    keys = json.loads(base64.b64decode(secret["data"]["keys.json"]))
    keys[-1]["createdAt"] = (datetime.fromisoformat(keys[-1]["createdAt"]) - by).isoformat()
    operator = Admin(admin.kubeconfig, OPERATOR)  # admission lets nobody else write keys
    operator.patch("secret", "codeexec-sealing", {"stringData": {"keys.json": json.dumps(keys)}}, SYSTEM)
    return keys[-1]["name"]
