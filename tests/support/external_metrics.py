"""A metrics adapter of a test's own: external.metrics.k8s.io, aggregated by the API server, as prometheus-adapter is.

It serves one metric, made of what the operator's /metrics says at that moment.
"""

import base64
import http.server
import json
import re
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from cluster_tools import SYSTEM, Admin
from control_plane import ControlPlane

_API: Final = "external.metrics.k8s.io"
_VERSION: Final = "v1beta1"
_NAME: Final = "external-metrics"
_PORT: Final = 6443
METRIC: Final = "codeexec_pool_demand"
_PARTS: Final = ("codeexec_pool_claimed_pods", "codeexec_pool_queued_executions")


def demand(metrics: str, namespace: str) -> int:
    """Pods in use and executions that wait, of a namespace: the sum that the documented query makes."""
    pattern = rf'^(?:{"|".join(_PARTS)}){{sandbox_namespace="{re.escape(namespace)}"}} (\S+)$'
    return sum(int(float(value)) for value in re.findall(pattern, metrics, re.MULTILINE))


class ExternalMetrics:
    """Served from the time it is entered to the time it is left.

    Args:
        plane: whose API server aggregates it.
        admin: its administrator.
        metrics: gives what Prometheus would be given.
    """

    def __init__(self, plane: ControlPlane, admin: Admin, metrics: Callable[[], str]) -> None:
        self._plane, self._admin, self._metrics = plane, admin, metrics
        self.asked: list[int] = []
        """The values that were served."""

    def __enter__(self) -> Self:
        meta = {"name": _NAME, "namespace": SYSTEM}
        port = {"port": _PORT, "protocol": "TCP"}
        service = self._admin.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [port]}}
        )
        # The API server wants to see an endpoint, and connects to the Service.
        labels = {"kubernetes.io/service-name": _NAME}
        endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.11"]}], "ports": [{"port": _PORT}]}
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        self._admin.apply({**kind, "metadata": {**meta, "labels": labels}, **endpoints})
        certificate, key = self._plane.serving_certificate(_NAME, f"{_NAME}.{SYSTEM}.svc")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        address = (service["spec"]["clusterIP"], _PORT)
        self._server = http.server.ThreadingHTTPServer(address, self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name=_NAME, daemon=True)
        self._thread.start()
        authority = base64.b64encode((self._plane.folder / "ca.crt").read_bytes()).decode()
        self._admin.apply(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{_VERSION}.{_API}"},
                "spec": {
                    **{"group": _API, "version": _VERSION, "groupPriorityMinimum": 100, "versionPriority": 100},
                    **{"service": {"name": _NAME, "namespace": SYSTEM, "port": _PORT}, "caBundle": authority},
                },
            }
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.delete("apiservice", f"{_VERSION}.{_API}", "")
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._admin.delete("endpointslice", _NAME, SYSTEM)
        self._admin.delete("service", _NAME, SYSTEM)

    def _answer(self, path: str) -> dict[str, Any] | None:
        url = urlsplit(path)
        root = f"/apis/{_API}/{_VERSION}"
        if url.path == root:
            resource = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            names = {"groupVersion": f"{_API}/{_VERSION}", "resources": [{**resource, "singularName": ""}]}
            return {"kind": "APIResourceList", "apiVersion": "v1", **names}
        selector = parse_qs(url.query).get("labelSelector", [""])[0]
        label, _, namespace = selector.partition("=")
        if not url.path.endswith(f"/{METRIC}") or label != "sandbox_namespace":
            return None
        value = demand(self._metrics(), namespace)
        self.asked.append(value)
        item = {"metricName": METRIC, "metricLabels": {label: namespace}, "value": str(value)}
        item["timestamp"] = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{_API}/{_VERSION}"}
        return {**kind, "metadata": {}, "items": [item]}

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = answer(self.path)
                body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "code": 404}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
