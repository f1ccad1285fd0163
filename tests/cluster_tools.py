"""What tests need to look at the cluster and to act on it as its administrator: kubectl, and waits with a name."""

import base64
import functools
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from codeexec_api import sealing

T = TypeVar("T")

ROOT = Path(__file__).parent.parent
SYSTEM = "codeexec-system"
SANDBOX = "codeexec-sandbox"
AGENT = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
TERMINAL = frozenset({"Denied", "Expired", "Succeeded", "Failed", "TimedOut", "Cancelled", "OutOfMemory", "Lost"})


def image(which: str = "SANDBOX_IMAGE") -> str:
    """Reference by digest of an image that `make images` has pushed."""
    lines = (ROOT / ".codeexec" / "images.env").read_text().split()
    return dict(line.split("=", 1) for line in lines)[which]


def wait_for(what: str, probe: Callable[[], T], seconds: float = 60) -> T:
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
    return Admin(kubeconfig).kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")


class Admin:
    """kubectl with the administrator's rights, or with those of another kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig

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

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def exists(self, kind: str, name: str, namespace: str) -> bool:
        return self.try_kubectl("-n", namespace, "get", kind, name).returncode == 0

    def get(self, kind: str, name: str, namespace: str = SANDBOX) -> dict[str, Any]:
        return json.loads(self.kubectl("-n", namespace, "get", kind, name, "-o", "json"))

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        return self.get("pod", name, namespace)

    def execution(self, name: str) -> dict[str, Any]:
        return self.get("codeexecution", name)

    def phase(self, name: str) -> str:
        return self.execution(name).get("status", {}).get("phase", "")

    def running_execution(self, agent: str) -> str:
        """Name of the execution of this agent, once its code runs."""

        def probe() -> str | None:
            # The table that the API server makes: the records themselves are many, and some are large.
            rows = self.kubectl("-n", SANDBOX, "get", "codeexecutions", "--no-headers").splitlines()
            ours = [row.split() for row in rows if agent in row.split()]
            names = [name for name, _, *rest in ours if "Running" in rest]
            return names[0] if names else None

        return wait_for(f"code of agent {agent} to run", probe)

    def wait_for_phase(self, name: str, *phases: str, seconds: float = 60) -> dict[str, Any]:
        wait_for(f"{name} to become {' or '.join(phases)}", lambda: self.phase(name) in phases, seconds)
        return self.execution(name)

    def submit_to(self, name: str, code: str, session: str, **spec: Any) -> None:
        """Submit to a session, with the limits that tests make sessions with unless others are given."""
        limits = {"cpu": "200m", "memory": "96Mi"}
        self.submit(name, code, **{"sessionRef": {"name": session}, "limits": limits, **spec})

    def submit(self, name: str, *codes: str, payload: Mapping[str, bytes] | None = None, **spec: Any) -> None:
        """Create a CodeExecution and its payload directly, as a client of another make might."""
        blocks = [{"language": "python", **announce(code.encode())} for code in codes]
        contents = {f"block-{index}": code.encode() for index, code in enumerate(codes)} if payload is None else payload
        self.kubectl("create", "-f", "-", stdin=json.dumps(a_secret(name, contents)))
        made = an_execution(name, blocks, **{"requestedBy": self.me, **spec})
        self.kubectl("create", "-f", "-", stdin=json.dumps(made))


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


def an_execution(name: str, blocks: Sequence[Mapping[str, Any]], **spec: Any) -> dict[str, Any]:
    """Requested by the administrator, unless another user is given."""
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeExecution",
        "metadata": {"name": name, "namespace": SANDBOX},
        "spec": {
            "source": {"agent": "e2e"},
            "requestedBy": whoami(os.environ["KUBECONFIG"]),
            "payloadRef": {"name": name},
            "blocks": blocks,
            "timeoutSeconds": 20,
            **spec,
        },
    }


def a_sealed_execution(
    admin: Admin, name: str, code: str, *, sealed_for: str | None = None, **spec: Any
) -> dict[str, Any]:
    """As a client of another make might create it, with the key that is published at this moment."""
    published = admin.get("configmap", "codeexec-sealing-key")["data"]
    payload = sealing.seal({"block-0": code.encode()}, published, SANDBOX, sealed_for or name)
    block = {"language": "python", **announce(code.encode())}
    made = an_execution(name, [block], **{"limits": {"cpu": "100m", "memory": "64Mi"}, **spec})
    del made["spec"]["payloadRef"]
    made["spec"]["sealedPayload"] = payload.dump()
    return made


def a_session(name: str, **spec: Any) -> dict[str, Any]:
    """Requested by the administrator, unless another user is given."""
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "CodeSession",
        "metadata": {"name": name, "namespace": SANDBOX},
        "spec": {"source": {"agent": "e2e"}, "requestedBy": whoami(os.environ["KUBECONFIG"]), **spec},
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


def an_approval(execution: dict[str, Any], by: str, **changes: Any) -> dict[str, Any]:
    """That of an execution that waits for it, by this user; `changes` are of its spec."""
    meta = execution["metadata"]
    until = datetime.now(UTC) + timedelta(minutes=10)
    return {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "ExecutionApproval",
        "metadata": {
            "name": a_name(meta["name"]),
            "namespace": SANDBOX,
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


def restart_operator(admin: Admin) -> None:
    admin.kubectl("-n", SYSTEM, "rollout", "restart", "deployment/codeexec-operator")
    admin.kubectl("-n", SYSTEM, "rollout", "status", "deployment/codeexec-operator", "--timeout=90s")


def age_the_sealing_key(admin: Admin, by: timedelta) -> str:
    """Name of the key that counts, which has been there for so much longer from now on."""
    secret = admin.get("secret", "codeexec-sealing", SYSTEM)
    keys = json.loads(base64.b64decode(secret["data"]["keys.json"]))
    keys[-1]["createdAt"] = (datetime.fromisoformat(keys[-1]["createdAt"]) - by).isoformat()
    patch = json.dumps({"stringData": {"keys.json": json.dumps(keys)}})
    admin.kubectl("-n", SYSTEM, "patch", "secret", "codeexec-sealing", "--type=merge", "-p", patch)
    return keys[-1]["name"]
