"""A collector of spans for tests: takes OTLP over HTTP, and tells what it took as JSON.

Run as a program (`python3 otlp_receiver.py PORT`) it serves POST /v1/traces and GET /spans. Needs opentelemetry-proto
only, so that it also runs in the operator's image.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def plain(value: Any) -> Any:
    """An AnyValue of OTLP as Python has it."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    return [plain(one) for one in held.values] if kind == "array_value" else held


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in pairs}


def spans_of(body: bytes) -> list[dict[str, Any]]:
    """The spans of an export request; times in nanoseconds, ids in hexadecimal digits."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        {
            "resource": attributes(by_resource.resource.attributes),
            "scope": by_scope.scope.name,
            "trace": span.trace_id.hex(),
            "id": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "flags": span.flags & 0xFF,
            "name": span.name,
            "kind": span.kind,
            "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "attributes": attributes(span.attributes),
            "events": [{"name": event.name, **attributes(event.attributes)} for event in span.events],
            "error": span.status.code == span.status.STATUS_CODE_ERROR,
            "message": span.status.message,
        }
        for by_resource in request.resource_spans
        for by_scope in by_resource.scope_spans
        for span in by_scope.spans
    ]


class Receiver(ThreadingHTTPServer):
    """Keeps all spans, and the headers that they came with.

    `answer` is the status that it gives to each request, as soon as it `may_answer`.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0, answer: int = 200) -> None:
        self.spans: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer = answer
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__((address, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Receiver":
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        self.server.may_answer.wait()
        if self.server.answer == 200 and self.path == "/v1/traces":
            self.server.spans += spans_of(body)
        self._reply(b"")

    def do_GET(self) -> None:
        self._reply(json.dumps(self.server.spans).encode())

    def _reply(self, body: bytes) -> None:
        self.send_response(self.server.answer)
        self.send_header("Content-Type", "application/json" if body else "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":
    Receiver("", int(sys.argv[1])).serve_forever()
