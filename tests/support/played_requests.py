"""A server of HTTP that plays an API server for the synchronous command line: it runs in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import yaml


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[None]:
    """Have it answer, until the end."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def kubeconfig_at(server: ThreadingHTTPServer, folder: Path) -> Path:
    """A kubeconfig whose cluster it is."""
    path = folder / "kubeconfig"
    cluster = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
    raw = {
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    path.write_text(yaml.safe_dump(raw))
    return path
