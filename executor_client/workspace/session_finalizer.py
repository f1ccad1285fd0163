"""Ends the session of an executor that is gone, where no event loop can be counted on.

An executor may be collected in the middle of anything, or with the interpreter. Whatever fails here does no harm: the
operator ends a session that nothing runs in by its limits.
"""

import asyncio
import logging
import threading
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

from codeexec_api.names import GROUP, SESSION_PLURAL, VERSION
from executor_client.client.request import ClusterRef
from executor_client.exceptions import ClusterUnreachable
from executor_client.transport.credentials import Reading, tls_context
from executor_client.transport.kube_config import no_proxy, reader
from executor_client.workspace.shared_session import SharedSession

logger = logging.getLogger(__name__)

_READ_SECONDS: Final = 5
"""For the kubeconfig, and the credential plugin that it may name: the interpreter waits for this to end."""
_CONNECT_AND_READ_SECONDS: Final = (2, 3)


def end_unattended(shared: SharedSession, cluster: ClusterRef) -> None:
    """End the session, if one is open: in a thread, or at once when the interpreter ends. Raises nothing."""
    opened = shared.drop()
    if opened is None:
        return
    if threading.main_thread().is_alive():
        # The collector may have come in a running loop, or while some lock is held.
        threading.Thread(target=_end, args=(opened.session.name, cluster), name="codeexec-session-finalizer").start()
    else:
        _end(opened.session.name, cluster)


def _end(name: str, cluster: ClusterRef) -> None:
    try:
        # Nothing else needs the synchronous client, which takes a while to load.
        from kubernetes.client import Configuration
        from kubernetes.client.exceptions import ApiException
        from kubernetes.client.rest import RESTClientObject
        from urllib3 import HTTPHeaderDict

        read = asyncio.run(_read(cluster))
        configuration: Any = Configuration()
        configuration.host, configuration.verify_ssl = read.configuration.host, read.configuration.verify_ssl
        configuration.tls_server_name = read.configuration.tls_server_name
        if read.configuration.proxy:
            configuration.proxy, configuration.no_proxy = read.configuration.proxy, ""
        else:  # as aiohttp, which sends all other requests. This library would also take ALL_PROXY
            configuration.proxy = getproxies().get(urlsplit(configuration.host).scheme)
            configuration.no_proxy = no_proxy()
        configuration.retries = False
        headers = HTTPHeaderDict({"Content-Type": "application/merge-patch+json"})
        for header, value in read.identity.headers:
            headers.add(header, value.encode().decode("latin-1"))  # as which the library encodes it again
        namespace = quote(cluster.namespace, safe="")
        url = f"{configuration.host}/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{SESSION_PLURAL}/{name}"
        connections = RESTClientObject(configuration)
        connections.pool_manager.connection_pool_kw["ssl_context"] = tls_context(read.configuration, read.identity)
        try:
            ended: Any = {"spec": {"ended": True}}
            answer = connections.request("PATCH", url, headers, ended, _request_timeout=_CONNECT_AND_READ_SECONDS)
            if answer.status >= 300:
                raise ApiException(http_resp=answer)
        finally:
            connections.close()
    except Exception as error:  # the last thing that is done; there is nobody to tell but the log
        logger.info("could not end session %s, which ends at its idle timeout: %s", name, error)


async def _read(cluster: ClusterRef) -> Reading:
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return await reader(cluster.kubeconfig, cluster.context)()
    except TimeoutError:
        raise ClusterUnreachable(
            f"reading the kubeconfig or running its credential plugin took longer than {_READ_SECONDS} s, which is "
            "the limit at the end of the process"
        ) from None
