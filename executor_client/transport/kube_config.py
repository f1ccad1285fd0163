"""How a cluster is found: by the service account of a pod, or by a kubeconfig and what that names.

Key material stays in memory. `kubernetes` writes it into temporary files, which stay behind when a process is killed.
"""

import asyncio
import base64
import binascii
import json
import os
import sys
from asyncio.subprocess import PIPE
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config.exec_provider import ExecProvider
from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger
from kubernetes.client.rest import should_bypass_proxies

from executor_client.exceptions import ClusterUnreachable
from executor_client.model.words import option
from executor_client.transport.credentials import Credentials, Identity, Read, Reading
from executor_client.transport.impersonation import impersonation

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KUBECONFIG: Final = "~/.kube/config"
_MERGED: Final = ("clusters", "contexts", "users")
_TOLD: Final = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
_EXTENSION: Final = "client.authentication.k8s.io/exec"
"""Of a cluster in a kubeconfig: what its plugins are to know."""
_YAML: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLUGIN_SECONDS: Final = 60
_LOGIN_SECONDS: Final = 300
"""For a credential plugin that can ask a human, because there is a terminal."""


async def find(kubeconfig: str | None, context: str | None) -> tuple[client.Configuration, Credentials]:
    """Those of the kubeconfig that is named; else of the pod's service account; else of the user's kubeconfig.

    Raises:
        ClusterUnreachable: there is no configuration, or it can't be read.
    """
    reading = await reader(kubeconfig, context)()
    configuration = reading.configuration
    # aiohttp takes NO_PROXY as Python's urllib reads it: names and domains only. kubectl takes networks, too.
    if configuration.proxy is None and should_bypass_proxies(configuration.host, no_proxy()):
        configuration.client_session_kwargs = {"trust_env": False}
    # Read again, it is the same context, whatever a kubeconfig has as the current one by then.
    return configuration, Credentials(reader(kubeconfig, context or reading.context), reading)


def no_proxy() -> str:
    """Hosts and networks for which no proxy of the environment is used: as in Go, this machine is always one."""
    return f"{os.environ.get('no_proxy', os.environ.get('NO_PROXY', ''))},localhost,127.0.0.0/8,::1"


def reader(kubeconfig: str | None, context: str | None) -> Read:
    """What reads them, as `find` does.

    Raises:
        ClusterUnreachable: there is no kubeconfig.
    """
    in_cluster = "KUBERNETES_SERVICE_HOST" in os.environ and (_SERVICE_ACCOUNT / "token").exists()
    if kubeconfig is None and context is None and in_cluster:
        return _read_service_account
    return partial(_read_kubeconfig, _find_kubeconfig(kubeconfig), context)


async def _read_service_account() -> Reading:
    configuration = _configuration()
    token, authority = _SERVICE_ACCOUNT / "token", _SERVICE_ACCOUNT / "ca.crt"
    try:
        config.load_incluster_config(client_configuration=configuration)
        identity = Identity(f"Bearer {token.read_text().strip()}", authority=authority.read_bytes())
    except (config.ConfigException, OSError) as error:
        raise ClusterUnreachable(
            f"can't use the service account of this pod: {error}. Set automountServiceAccountToken: true for the pod, "
            f"or pass {option('kubeconfig')}"
        ) from error
    _leave_out_credentials(configuration, identity)
    return Reading(configuration, identity, (token, authority))


async def _read_kubeconfig(where: str, context: str | None) -> Reading:
    """Read a kubeconfig, and ask the plugin that it names.

    Raises:
        ClusterUnreachable: it can't be used; the text says which file, and what to do.
    """
    configuration = _configuration()
    try:
        merger = _Merger(where)  # type: ignore[no-untyped-call]
        loader = KubeConfigLoader(merger.config, context, config_base_path=None)
        chosen, users = loader.current_context["context"], merger.config.safe_get("users")
        cluster = merger.config["clusters"].get_with_name(chosen["cluster"])["cluster"]
        named = merger.config["users"].get_with_name(chosen["user"], safe=True) if users and "user" in chosen else None
        user: Any = named["user"] if named else None
        impersonated = impersonation(user.value) if user else ()
        read, files = {}, [Path(one) for one in merger.paths]
        # Taken out of what the loader sees, which would write it into temporary files.
        for node, name in ((cluster, "certificate-authority"), (user, "client-certificate"), (user, "client-key")):
            read[name], file = _taken(node, name)
            files += file
        if user and "tokenFile" in user:
            files.append(_beside(user, user["tokenFile"]))
        plugin = user["exec"] if user and "exec" in user else None
        if plugin:
            del user.value["exec"]
            if os.sep in plugin["command"]:
                plugin.value["command"] = str(_beside(plugin, plugin["command"]))
        wanted = plugin and plugin.safe_get("provideClusterInfo")
        told = {"cluster": _told_of(cluster, read["certificate-authority"])} if wanted else {}
        loader.cert_file = loader.key_file = None
        async with asyncio.timeout(_PLUGIN_SECONDS):  # for an auth-provider, which was before plugins
            await loader.load_and_set(configuration)
        shown: dict[str, Any] = await _ask(plugin, where, told) if plugin else {}
    except config.ConfigException as error:
        raise ClusterUnreachable(_what_kubeconfig_lacks(where, context, str(error))) from error
    except (OSError, yaml.YAMLError) as error:
        raise ClusterUnreachable(
            f"can't read the kubeconfig {where}: {error or repr(error)}. Correct the file, set KUBECONFIG, or pass "
            f"{option('kubeconfig')}"
        ) from error
    except binascii.Error as error:
        raise ClusterUnreachable(
            f"can't read the kubeconfig {where}: a field that ends in -data is not base64 ({error}). Write the file "
            "again: `kubectl config view --raw --minify --flatten`"
        ) from error
    except (TypeError, AttributeError, KeyError, ValueError) as error:  # what the loader raises for an empty file
        raise ClusterUnreachable(
            f"{where} is not a kubeconfig: set KUBECONFIG or pass {option('kubeconfig')}"
        ) from error
    token = f"Bearer {shown['token']}" if shown.get("token") else configuration.api_key.get("BearerToken")
    identity = Identity(
        authorization=token.strip() if token else None,
        certificate=shown.get("clientCertificateData", "").encode() or read["client-certificate"],
        key=shown.get("clientKeyData", "").encode() or read["client-key"],
        authority=read["certificate-authority"],
        impersonation=impersonated,
        expires_at=_time(shown.get("expirationTimestamp")),
    )
    _leave_out_credentials(configuration, identity)
    return Reading(configuration, identity, tuple(files), loader.current_context["name"])


class _Merger(KubeConfigMerger):
    """As the library's, which parses YAML in Python; libyaml is many times as fast."""

    def load_config(self, path: str) -> None:
        """Add a file to those that were read. As in kubectl, entries and the current context of earlier files count."""
        found: Any = yaml.load(Path(path).read_bytes(), Loader=_YAML)  # noqa: S506 - it is a safe one
        if self.config_merged is None:
            self.config_merged = ConfigNode(path, {**found, **{kind: [] for kind in _MERGED}}, path)
        for kind in _MERGED:
            self._merge(kind, found.get(kind) or [], path)  # type: ignore[no-untyped-call]
        if found.get("current-context") and not self.config_merged.value.get("current-context"):
            self.config_merged.value["current-context"] = found["current-context"]
        self.config_files[path] = found


def _configuration() -> client.Configuration:
    # Not bounded: each call that is waited for holds a connection, and what it waits for may need another.
    configuration = client.Configuration(connection_pool_maxsize=0)
    configuration.client_go_retries = True  # what is read is read again after the time that a Retry-After says
    return configuration


def _leave_out_credentials(configuration: client.Configuration, identity: Identity) -> None:
    """`Connections` shows them, the newest ones with each request."""
    configuration.api_key, configuration.refresh_api_key_hook, configuration.ssl_ca_cert = {}, None, None
    # The library loads the authorities of the system for each connection otherwise, for some 20 ms.
    configuration.ca_cert_data = identity.authorities


def _taken(node: Any, name: str) -> tuple[bytes, list[Path]]:
    """Content of an entry that is data or names a file, and that file. The entry is taken out."""
    if not node:
        return b"", []
    data, file = node.value.pop(f"{name}-data", None), node.value.pop(name, None)
    if data:
        return base64.b64decode(data), []
    if not file:
        return b"", []
    path = _beside(node, file)
    return path.read_bytes(), [path]


def _beside(node: Any, file: str) -> Path:
    """A file that a kubeconfig names, relative to where that is."""
    return Path(node.path).absolute().parent / file


def _told_of(cluster: Any, authority: bytes) -> dict[str, Any]:
    """What a credential plugin is told of a cluster, as by kubectl."""
    data = base64.b64encode(authority).decode()
    told = {**{name: cluster.value.get(name) for name in _TOLD}, "certificate-authority-data": data}
    extensions = {one["name"]: one["extension"] for one in cluster.value.get("extensions") or ()}
    return {name: value for name, value in {**told, "config": extensions.get(_EXTENSION)}.items() if value}


def _is_watched() -> bool:
    """Whether stdout is a terminal, where somebody may log in. A service may have no stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


async def _ask(plugin: Any, where: str, told: dict[str, Any]) -> dict[str, Any]:
    """What a credential plugin answers that is told this, too.

    Raises:
        ClusterUnreachable: it can't be run, or doesn't answer in time.
        ConfigException: it has failed, or its answer is none.
    """
    seconds = _LOGIN_SECONDS if _is_watched() else _PLUGIN_SECONDS
    try:
        async with asyncio.timeout(seconds):
            answer = await _run(ExecProvider(plugin), told)
    except TimeoutError:
        raise ClusterUnreachable(
            f"the credential plugin {plugin['command']!r} that the kubeconfig {where} names has not answered within "
            f"{seconds} s, and was ended; run it by hand to see what it waits for"
        ) from None
    except OSError as error:
        raise ClusterUnreachable(
            f"can't run the credential plugin {plugin['command']!r} that the kubeconfig {where} names: {error}; "
            "install the plugin, or correct users[].user.exec.command"
        ) from error
    if not answer.get("token") and not (answer.get("clientCertificateData") and answer.get("clientKeyData")):
        raise ClusterUnreachable(
            f"the credential plugin {plugin['command']!r} that the kubeconfig {where} names has answered without "
            "status.token and without status.clientCertificateData with clientKeyData; run it by hand to see why"
        )
    return answer


async def _run(provider: ExecProvider, told: dict[str, Any]) -> dict[str, Any]:
    """What a plugin answers. The library leaves its process behind where nobody waits for it any more.

    Raises:
        OSError: it can't be run.
        ConfigException: it has failed, or its answer is none.
    """
    version, spec = provider.api_version, {**told, "interactive": _is_watched()}
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec}, default=str)
    environment = {**provider.env, "KUBERNETES_EXEC_INFO": info}
    create = asyncio.create_subprocess_exec(*provider.args, env=environment, stdout=PIPE, stderr=PIPE)
    creation = asyncio.create_task(create)
    try:
        output, errors = await (await asyncio.shield(creation)).communicate()
    finally:
        process = await creation  # a creation that is cancelled waits for what the plugin has started
        if process.returncode is None:
            # Kills it, and closes the pipes, which what it has started may hold: `kill` and `wait` would wait for that.
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()
    if process.returncode:
        why = errors.decode(errors="replace").strip()
        raise config.ConfigException(f"exec: process returned {process.returncode}{'. ' if why else ''}{why}")
    try:
        answer: dict[str, Any] = json.loads(output)
        if answer["apiVersion"] != version:
            raise config.ConfigException(f"exec: the plugin's apiVersion is {answer['apiVersion']}, and not {version}")
        return dict(answer["status"])
    except (ValueError, KeyError, TypeError) as error:
        raise config.ConfigException(f"exec: the plugin's answer is no ExecCredential: {error!r}") from error


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError("a time without a zone")
        return time
    except ValueError as error:
        raise ClusterUnreachable(
            f"status.expirationTimestamp of the credential plugin is {text!r}, but must be an RFC 3339 time such as "
            "2026-11-28T12:00:00Z. Update the plugin"
        ) from error


def _find_kubeconfig(kubeconfig: str | None) -> str:
    """One path or several, as kubectl takes them.

    Raises:
        ClusterUnreachable: there is no file.
    """
    named = os.environ.get("KUBECONFIG")  # the library takes it as it was when it was imported
    where = kubeconfig or named or _KUBECONFIG
    files = [Path(one).expanduser() for one in where.split(os.pathsep) if one]
    if any(file.exists() for file in files):
        return where
    unset = "KUBECONFIG is not set, and " if not (kubeconfig or named) else ""
    absent = f"{' and '.join(map(str, files))} {'does' if len(files) == 1 else 'do'} not exist"
    raise ClusterUnreachable(
        f"found no kubeconfig: {unset}{absent}; set KUBECONFIG to the path of your kubeconfig, or pass "
        f"{option('kubeconfig')}"
    )


def _what_kubeconfig_lacks(where: str, context: str | None, error: str) -> str:
    if "current-context" in error:
        return (
            f"the kubeconfig {where} has no current context; pass {option('context')}, or run `kubectl config "
            "use-context NAME`"
        )
    if context and f"name {context} in" in error:
        return f"the kubeconfig {where} has no context {context!r}; `kubectl config get-contexts` lists its contexts"
    return f"can't use the kubeconfig {where}: {error}"
