"""An S3 server on the loopback interface, as far as checkpoints, exports and the output store ask one."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree


class ObjectStorage:
    """Answers as S3 does, as far as it is asked here."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.conditions: list[str | None] = []
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                ours.conditions.append(self.headers["If-None-Match"])
                there = self.path in ours.objects and self.headers["If-None-Match"] == "*"
                if not there:
                    ours.objects[self.path] = content
                self.answer(412 if there else 200, b"")

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if "list-type" in (query := parse_qs(url.query)):
                    return self.answer(200, ours.listing(url.path, query.get("prefix", [""])[0]))
                found = ours.objects.get(url.path)
                return self.answer(404 if found is None else 200, found or b"")

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", '"1"')
                self.send_header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
                self.end_headers()
                with suppress(ConnectionError):  # who asked may not want all of it
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def listing(self, bucket: str, prefix: str) -> bytes:
        root = ElementTree.Element("ListBucketResult")
        for path, content in self.objects.items():
            key = path.removeprefix(f"{bucket}/")
            if key.startswith(prefix):
                entry = ElementTree.SubElement(root, "Contents")
                fields = {"Key": key, "Size": str(len(content)), "LastModified": "2026-11-21T12:00:00Z", "ETag": "1"}
                for name, value in fields.items():
                    ElementTree.SubElement(entry, name).text = value
        return ElementTree.tostring(root)

    @property
    def environment(self) -> dict[str, str]:
        """Leads a client of S3 here."""
        where = {"AWS_ENDPOINT": f"http://127.0.0.1:{self.server.server_address[1]}", "AWS_ALLOW_HTTP": "true"}
        return where | {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "here"}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
