"""An API server that a test plays for the command line, over HTTP: the server runs in a thread of its own."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml


class PlayedApiServer(ABC):
    """Answers within its `with` block."""

    def __init__(self) -> None:
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: value[0] for name, value in parse_qs(url.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, text = ours.answer(url.path, query, json.loads(body or "null"))
                content = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if url.path.endswith("/log") else "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PATCH = do_GET  # noqa: N815 - the name is http.server's

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @abstractmethod
    def answer(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, str]:
        """Status and content."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig whose cluster it is."""
        path = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        raw = {
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        path.write_text(yaml.safe_dump(raw))
        return path
