"""The operator as a process of this machine: as its Deployment starts it, but for the container around it.

It gets the environment that the chart gives it. What differs: it finds the API server by a kubeconfig,
and `/etc/resolv.conf` names nobody, in a mount namespace of its own, because a name server of the machine that runs the
tests is none of the cluster's. So the targets of its egress proof are the API server, the canary and the kubelets, and
all three are there.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import standstill
import telling_operator
from cluster_tools import wait_for
from diagnostics import tracebacks
from operator_template import Forked, can_start
from ports import free_ports
from waits import SECONDS

from codeexec_operator.core.timing import Timing

LEASE_SECONDS: Final = 240
"""More than the chart says: nobody restarts an operator here that has ended because its API server was away, which may
take as long as `control_plane` waits for it. A leader acts for two thirds of this without a renewal. Tests of the time
that a takeover takes have operators with a shorter one.
"""
_PATIENCE: Final = {"payload_grace": 60, "ping_answer": 15, "give_way": 60}
"""More than in production: on a busy machine a client may take seconds from the record to the payload, a runner as many
to answer, and a scheduler to give a pod the room that a pool has made for it. An answer can't be waited for much
longer: a connection that is silent for so long counts as dead.
"""
_START_SECONDS = SECONDS
_STOP_SECONDS = 30
"""The chart's terminationGracePeriodSeconds."""
_TELL_SECONDS = 60
_ANSWER_SECONDS = 60
"""Of a machine where much else runs, and the event loop of an operator has much to do."""
_LOG_LINES = 60
_MEASURED_EACH = 3
_starts = itertools.count()


class OperatorProcess:
    """One operator, with ports and a log of its own.

    Args:
        folder: for its log.
        environment: what the chart gives it.
        kubeconfig: with the rights of its service account.
        api_server: address and port, a target of its egress proofs.
        clock: see `_shifted`.
        shard: which of how many shards it is.
        lease_seconds: how long others wait for it when it has gone silent, by a clock that runs as it should.
        free_lease: lets another one lead without that wait.
        timing: fields of `Timing` that are others than `_patience` says, by the operator's clock.
        forked: it may be a fork of a process that has imported the operator: not where starts are measured.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str],
        kubeconfig: str | Path,
        api_server: str,
        clock: str | None = None,
        shard: tuple[int, int] = (0, 1),
        lease_seconds: int = LEASE_SECONDS,
        free_lease: Callable[[], None],
        timing: Mapping[str, float] | None = None,
        forked: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "operator.log"
        self.health_port, canary_port, self.metrics_port = free_ports(3)
        (folder / "resolv.conf").write_text("")
        self._folder = folder
        target = urlsplit(api_server)
        passed = {name: value for name, value in os.environ.items() if name.startswith(("COV", "PATH", "HOME", "LANG"))}
        self.environment = {
            **passed,
            **environment,
            "CODEEXEC_HEALTH_PORT": str(self.health_port),
            "CODEEXEC_CANARY_PORT": str(canary_port),
            "CODEEXEC_METRICS_PORT": str(self.metrics_port),
            "KUBERNETES_SERVICE_HOST": str(target.hostname),
            "KUBERNETES_SERVICE_PORT": str(target.port),
            "KUBECONFIG": str(kubeconfig),
            "CODEEXEC_SHARD": str(shard[0]),
            "CODEEXEC_SHARDS": str(shard[1]),
            "CODEEXEC_LEASE_SECONDS": str(lease_seconds * rate_of(clock)),
            **_shifted(clock),
        }
        self.environment[telling_operator.TIMING] = json.dumps({**_patience(clock), **(timing or {})})
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._forked = forked
        self._looked_through = 0
        """Bytes of the log."""
        self._free_lease = free_lease

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process, "the operator was not started"
        return self._process.pid

    def start(self, *, ready: bool = True, leads: bool = True) -> None:
        """Start it, and wait until it is ready and leads, unless that isn't asked for.

        Where another one leads, or was killed and held its Lease, this one stands by.
        """
        assert not self.running, "the operator runs already"
        self._process = self._started(self._measured_sometimes())
        if ready:
            self.wait_until_ready()
        if ready and leads:
            self.wait_until_it_leads()

    def _started(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
        self.log.touch()  # a fork opens it later
        if self._forked and can_start(environment):
            return Forked(self._folder, environment, self.log)
        script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
        quiet = ["sh", "-c", script, str(self._folder / "resolv.conf")]
        program = [sys.executable, "-P", telling_operator.__file__]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *unshare, *quiet, *program],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # see control_plane.Program.start
                cwd=self._folder,
            )

    def _measured_sometimes(self) -> dict[str, str]:
        """The environment of this start. `coverage` adds a quarter to the CPU of a start, and more later."""
        if next(_starts) % _MEASURED_EACH == 0:
            return self.environment
        return {name: value for name, value in self.environment.items() if not name.startswith("COV")}

    def wait_until_ready(self, seconds: float = _START_SECONDS) -> None:
        """Until its readiness probe would succeed; ends at once if it has ended."""

        def probe() -> bool:
            if not self.running:
                raise AssertionError(f"the operator has ended:\n{self.tail()}")
            return self.answers("readyz")

        wait_for("the operator to be ready", probe, seconds)

    def wait_until_it_leads(self) -> None:
        """Until it works; ends at once if it has ended."""

        def leads() -> bool:
            assert self.running, f"the operator has ended:\n{self.tail()}"
            return self.leads

        wait_for("the operator to lead", leads, _START_SECONDS)

    @property
    def leads(self) -> bool:
        """True if it works, and does not stand by."""
        return "\ncodeexec_leader 1.0" in self.metrics()

    def answers(self, path: str) -> bool:
        """True if one of its health endpoints says that all is well."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.health_port}/{path}", timeout=_ANSWER_SECONDS
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metrics(self) -> str:
        """What Prometheus would be given."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=_ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def memory_mib(self) -> int:
        """What it holds of the machine's memory now."""
        return self._memory("VmRSS")

    def peak_mib(self) -> int:
        """The most that it has held since it was started."""
        return self._memory("VmHWM")

    def _memory(self, what: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [line] = [one for one in status if one.startswith(what)]
        return int(line.split()[1]) // 1024

    def stop(self) -> int:
        """As the kubelet ends it; its exit code."""
        assert self._process, "the operator was not started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_SECONDS)

    def ended(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        assert self._process, "the operator was not started"
        return self._process.wait(_START_SECONDS)

    def kill(self, *, keeps_lease: bool = False) -> None:
        """Without a warning, as when its node is gone. Another one can lead at once, unless it keeps its Lease."""
        assert self._process, "the operator was not started"
        self._process.kill()
        self._process.wait(_STOP_SECONDS)
        if not keeps_lease:
            self._free_lease()

    def pause(self) -> None:
        """It does nothing, and its connections stay open, until `resume`."""
        standstill.stop(self.pid)

    def resume(self) -> None:
        standstill.resume(self.pid)

    def restart(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        """It is not needed any more."""
        if not self.running:
            return
        self.resume()
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()

    def tasks(self) -> str:
        """What each of its threads and tasks waits for now."""
        begin = self.log.stat().st_size
        os.kill(self.pid, telling_operator.TELL)

        def told() -> str:
            said = self.log.read_bytes()[begin:].decode(errors="replace")
            return said if telling_operator.ALL_TOLD in said else ""

        return wait_for("the operator to tell of its tasks", told, _TELL_SECONDS)

    def wrote_since(self, moment: float) -> bool:
        """True if something came into its log since then, in seconds since 1970."""
        return self.log.exists() and self.log.stat().st_mtime >= moment

    def tracebacks(self) -> list[str]:
        """See `diagnostics.tracebacks`: those since the last call."""
        said = self.log.read_bytes()[self._looked_through :] if self.log.exists() else b""
        self._looked_through += len(said)
        return tracebacks(said.decode(errors="replace"))

    def tail(self, lines: int = _LOG_LINES) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def rate_of(clock: str | None) -> int:
    """How many times as fast such a clock runs.

    Its Lease has to be as many times as long. Else a renewal that takes half a second, as on a busy machine, ends it.
    """
    return int((clock or "").partition("x")[2] or 1)


def _patience(clock: str | None) -> dict[str, float]:
    """What an operator is given; more if its clock runs fast, for clients, nodes and runners take as long as ever."""
    seconds = {"start_timeout": Timing().start_timeout, **_PATIENCE}
    return {name: rate_of(clock) * one for name, one in seconds.items()}


def _shifted(clock: str | None) -> dict[str, str]:
    """A clock that is wrong (`-90s`) or runs fast (`+0 x20`, its timers with it), by libfaketime."""
    if clock is None:
        return {}
    wrong_only = {} if "x" in clock else {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": str(libfaketime()), "FAKETIME": clock, **wrong_only}


def libfaketime() -> Path:
    """The library, of Debian's package of that name."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise FileNotFoundError("libfaketime is missing: apt-get install libfaketime")
    return found[0]
