"""A control plane of a test's own: a real etcd and kube-apiserver, without a node.

    with ControlPlane(tmp_path, programs=(*API_SERVER, *CONTROLLERS)) as plane:
        ...  # plane.kubeconfig is the administrator's

The programs are `hyperkube`, the binary that is built for the test cluster's node: it behaves as the program under
whose name it is started. Each control plane has its own folder and ports, so that pytest's workers have one each. The
kernel ends the programs when this process ends, however that happens.
"""

import contextlib
import functools
import itertools
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import standstill
import yaml
from certificates import Authority, write_key
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

API_SERVER = ("etcd", "kube-apiserver")
CONTROLLERS = ("kube-controller-manager",)
SCHEDULER = ("kube-scheduler",)
PROGRAMS = (*API_SERVER, *CONTROLLERS, *SCHEDULER)

# Without these an API server lacks something that codeexec's objects, or tests of them, rely on. kubeadm's run more.
NEEDED_CONTROLLERS = (
    "clusterrole-aggregation-controller",  # fills the built-in role "view"
    "garbage-collector-controller",
    "namespace-controller",  # deletes what is in a namespace that is deleted
    "resourcequota-controller",  # a quota that it has not counted yet refuses everything
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",  # a pod needs its namespace's account "default"
    "serviceaccount-token-controller",
    "validatingadmissionpolicy-status-controller",  # checks the types of the rules
)
NODE_CONTROLLERS = (
    "disruption-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "taint-eviction-controller",
)
AUTOSCALING_CONTROLLERS = ("horizontal-pod-autoscaler-controller",)

_START_SECONDS = 100
_STOP_SECONDS = 10
_LOG_LINES = 25
_HEALTH = {"etcd": ("http", "health"), "kube-apiserver": ("https", "readyz")}
_numbers = itertools.count()


def hyperkube() -> Path:
    """The binary: CODEEXEC_HYPERKUBE, or that of the test cluster's node."""
    chosen = os.environ.get("CODEEXEC_HYPERKUBE")
    cache = os.environ.get("CODEEXEC_KIND_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/codeexec-kind"
    path = Path(chosen or f"{cache}/node-bin/hyperkube").expanduser().absolute()
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is no program: run `make control-plane`, which builds it once")
    return path


class Program:
    """One process of the control plane, and its log."""

    def __init__(self, folder: Path, name: str, healthy: Callable[[], bool]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._binary, self._healthy = folder / "bin" / name, healthy
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process, f"{self.name} was not started"
        return self._process.pid

    def start(self, arguments: Sequence[str]) -> None:
        """Start it, without waiting until it is ready. It ends with the thread that starts it, if not before."""
        assert not self.running, f"{self.name} runs already"
        # Not in our process group, for Ctrl-C is for us, who end it. But in our session: `nice` counts within one only,
        # where the kernel groups tasks by session (sched_autogroup).
        command = ["setpriv", "--pdeathsig", "KILL", "--", str(self._binary), *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, cwd=self.log.parent
            )

    def wait(self, seconds: float = _START_SECONDS) -> None:
        """Until it is ready; fails, with the end of its log, if it ends before or takes too long."""
        deadline = time.monotonic() + seconds
        while not self._healthy():
            if not self.running:
                raise RuntimeError(
                    f"{self.name} ended with {self._process and self._process.returncode}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} was not ready after {seconds} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def stop(self, how: int = signal.SIGKILL) -> None:
        """Ends it and waits for that. SIGTERM lets it finish, which an API server with watches takes a minute for; what
        has not ended by itself after 10 s is killed.
        """
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It takes connections and answers nothing, until `resume`."""
        standstill.stop(self.pid)

    def resume(self) -> None:
        standstill.resume(self.pid)


class ControlPlane:
    """Starts when entered, in the order of `programs`, and ends when left. `kubeconfig` is the administrator's."""

    def __init__(
        self,
        folder: Path,
        *,
        programs: Sequence[str] = API_SERVER,
        controllers: Sequence[str] = NEEDED_CONTROLLERS,
        audit_policy: Path | None = None,
        api_server_arguments: Sequence[str] = (),
        controller_manager_arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bin").mkdir()
        for name in PROGRAMS:
            (folder / "bin" / name).symlink_to(hyperkube())
        # An address for each process: what listens there is its own, and so is the port after a restart.
        self.address = _own_address()
        self.ports = _free_ports(self.address, ("peer", *PROGRAMS))
        self.url = f"https://{self.address}:{self.ports['kube-apiserver']}"
        self.audit_log = folder / "audit.log"
        self._authority = _make_keys(folder, self.address)
        self._trust = ssl.create_default_context(cafile=folder / "ca.crt")
        self._trust.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        self.kubeconfig = str(self._kubeconfig("admin"))
        self._arguments = {
            "etcd": self._etcd(),
            "kube-apiserver": [*self._api_server(audit_policy), *api_server_arguments],
            "kube-controller-manager": [*self._controller_manager(controllers), *controller_manager_arguments],
            "kube-scheduler": self._scheduler(),
        }
        self.programs = {name: Program(folder, name, functools.partial(self._healthy, name)) for name in programs}

    # --- its life ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for name in self.programs:
                self.start(name)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, name: str) -> None:
        """Start one of the programs, and wait until it is ready."""
        self.programs[name].start(self._arguments[name])
        self.programs[name].wait()

    def kill(self) -> None:
        """End all of them at once: nothing of it is needed any more."""
        for program in reversed(self.programs.values()):
            program.stop()

    def stop_api_server(self, how: int = signal.SIGKILL) -> None:
        self.programs["kube-apiserver"].stop(how)

    def start_api_server(self) -> None:
        self.start("kube-apiserver")

    def restart_api_server(self, how: int = signal.SIGKILL) -> None:
        self.stop_api_server(how)
        self.start_api_server()

    def stop_etcd(self, how: int = signal.SIGKILL) -> None:
        self.programs["etcd"].stop(how)

    def start_etcd(self) -> None:
        """And wait until the API server has found it."""
        self.start("etcd")
        self.programs["kube-apiserver"].wait()

    # --- who talks to it ---------------------------------------------------------------

    def kubeconfig_for(self, user: str, *groups: str) -> str:
        """Path of the kubeconfig of a user whom a client certificate names."""
        file = f"user-{next(_numbers)}"
        self._authority.issue(file, user, groups)
        return str(self._kubeconfig(file))

    def kubeconfig_with_token(self, token: str, *, server: str | None = None) -> str:
        """Path of a kubeconfig with this token, of a service account for example."""
        return str(self._kubeconfig(f"token-{next(_numbers)}", token=token, server=server))

    def _kubeconfig(self, file: str, *, token: str | None = None, server: str | None = None) -> Path:
        own = {"client-certificate": f"{self.folder}/{file}.crt", "client-key": f"{self.folder}/{file}.key"}
        cluster = {"server": server or self.url, "certificate-authority": f"{self.folder}/ca.crt"}
        path = self.folder / f"{file}.kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "tests", "cluster": cluster}],
                    "users": [{"name": file, "user": {"token": token} if token else own}],
                    "contexts": [{"name": "it", "context": {"cluster": "tests", "user": file}}],
                    "current-context": "it",
                }
            )
        )
        return path

    def serving_certificate(self, file: str, *names: str) -> tuple[Path, Path]:
        """Certificate and key of a server with these names, signed by ca.crt."""
        return self._authority.issue(file, file, names=names)

    # --- whether it is ready -----------------------------------------------------------

    def _healthy(self, name: str) -> bool:
        scheme, path = _HEALTH.get(name, ("https", "healthz"))
        url = f"{scheme}://{self.address}:{self.ports[name]}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=2, context=self._trust if scheme == "https" else None) as answer:
                return bool(answer.status == 200)
        except OSError:  # nobody listens yet, or it says that it isn't ready
            return False

    # --- what they are started with ----------------------------------------------------

    def _serving(self) -> list[str]:
        return [f"--tls-cert-file={self.folder}/server.crt", f"--tls-private-key-file={self.folder}/server.key"]

    def _etcd(self) -> list[str]:
        clients, peers = (f"http://{self.address}:{self.ports[name]}" for name in ("etcd", "peer"))
        return [
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # nothing here outlives a power failure
            "--log-level=warn",
        ]

    def _api_server(self, audit_policy: Path | None) -> list[str]:
        """As kubeadm starts it, but for what needs a node or an aggregated API server."""
        audit = [f"--audit-policy-file={audit_policy}", f"--audit-log-path={self.audit_log}"] if audit_policy else []
        return [
            f"--etcd-servers=http://{self.address}:{self.ports['etcd']}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.ports['kube-apiserver']}",
            "--endpoint-reconciler-type=none",  # a loopback address is no endpoint of a Service
            *self._serving(),
            f"--client-ca-file={self.folder}/ca.crt",
            f"--kubelet-client-certificate={self.folder}/kubelet-client.crt",
            f"--kubelet-client-key={self.folder}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",  # beside those that Kubernetes enables by default
            "--enable-bootstrap-token-auth=true",
            "--allow-privileged=true",
            "--service-cluster-ip-range=127.128.0.0/12",  # a Service is what listens at its address on this machine
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self.folder}/sa.pub",
            f"--service-account-signing-key-file={self.folder}/sa.key",
            "--shutdown-delay-duration=0s",
            *audit,
        ]

    def _controller_manager(self, controllers: Sequence[str]) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--bind-address={self.address}",
            f"--secure-port={self.ports['kube-controller-manager']}",
            *self._serving(),
            f"--controllers={','.join(controllers)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.folder}/sa.key",
            f"--root-ca-file={self.folder}/ca.crt",
            "--leader-elect=false",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--bind-address={self.address}",
            f"--secure-port={self.ports['kube-scheduler']}",
            *self._serving(),
            "--leader-elect=false",
        ]


def _make_keys(folder: Path, address: str) -> Authority:
    authority = Authority(folder)
    names = ("localhost", "kubernetes.default.svc")
    authority.issue("server", "kube-apiserver", addresses=(address, "127.0.0.1"), names=names)
    authority.issue("admin", "kubernetes-admin", ("system:masters",))
    authority.issue("kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(folder / "sa.key", key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "sa.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return authority


def _own_address() -> str:
    """An address of this machine where no other process listens: Linux has 127.0.0.0/8, and no more than 2^22 pids."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"


def _free_ports(address: str, names: Sequence[str]) -> dict[str, int]:
    with contextlib.ExitStack() as held:
        probes = {name: held.enter_context(socket.socket()) for name in names}
        for probe in probes.values():
            probe.bind((address, 0))
        return {name: probe.getsockname()[1] for name, probe in probes.items()}
