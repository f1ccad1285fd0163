"""Keeps bundles beside an image, in its registry: as OCI 1.1 referrers."""

import hashlib
import json
import re
from typing import Any, Final

from oras.provider import Registry

from codeexec_api.image_signatures import BUNDLE_TYPES

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER: Final = "application/vnd.docker.distribution.manifest.v2+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"
_LOCAL: Final = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?/")
"""Registries that are spoken to without TLS, as Docker does."""


class Repository:
    """That of one image. Credentials are Docker's: `docker login` and its credential helpers."""

    def __init__(self, reference: str) -> None:
        self._registry = Registry(insecure=bool(_LOCAL.match(reference)))
        self._image = self._registry.get_container(reference)
        self._registry.auth.load_configs(self._image)

    def attach(self, bundle: str, predicate_type: str) -> None:
        """Put a bundle beside the image. One that is there already stays as it is."""
        subject = self._describe_image()
        layer = self._upload(bundle.encode(), BUNDLE_TYPES[0])
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": BUNDLE_TYPES[0],
            "config": self._upload(b"{}", _EMPTY),
            "layers": [layer],
            "subject": subject,
            "annotations": {
                "dev.sigstore.bundle.content": "dsse-envelope",
                "dev.sigstore.bundle.predicateType": predicate_type,
            },
        }
        content = json.dumps(manifest, separators=(",", ":")).encode()
        digest = _digest(content)
        answer = self._put(digest, content, _MANIFEST)
        if not answer.headers.get("OCI-Subject"):  # the registry is older than OCI 1.1: a tag lists the referrers
            of_it = {key: manifest[key] for key in ("mediaType", "artifactType", "annotations")}
            self._list(subject["digest"], {**of_it, "digest": digest, "size": len(content)})

    def _describe_image(self) -> dict[str, Any]:
        answer = self._ask("HEAD", self._image.digest, accept=f"{_MANIFEST}, {_INDEX}, {_DOCKER}")
        if answer.status_code != 200:
            raise SystemExit(f"error: the registry has no {self._image} ({answer.status_code}): push the image first")
        kind, size = answer.headers["Content-Type"], int(answer.headers["Content-Length"])
        return {"mediaType": kind, "digest": self._image.digest, "size": size}

    def _list(self, image: str, referrer: dict[str, Any]) -> None:
        """Add a manifest to those that the image's own tag lists."""
        tag = image.replace(":", "-")
        answer = self._ask("GET", tag, accept=_INDEX)
        known = answer.json()["manifests"] if answer.status_code == 200 else []
        if any(one["digest"] == referrer["digest"] for one in known):
            return
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [*known, referrer]}
        self._put(tag, json.dumps(index, separators=(",", ":")).encode(), _INDEX)

    def _ask(self, method: str, what: str, *, accept: str) -> Any:
        return self._registry.do_request(self._url(what), method, headers={"Accept": accept})

    def _put(self, what: str, content: bytes, kind: str) -> Any:
        answer = self._registry.do_request(self._url(what), "PUT", data=content, headers={"Content-Type": kind})
        return _accepted(answer, f"{what} of {self._image}")

    def _url(self, what: str) -> str:
        return f"{self._registry.prefix}://{self._image.manifest_url(what)}"

    def _upload(self, content: bytes, kind: str) -> dict[str, Any]:
        """A blob, by a session for one PUT; returns its descriptor."""
        described = {"mediaType": kind, "digest": _digest(content), "size": len(content)}
        registry, image = self._registry, self._image
        if not registry.blob_exists(described, image):
            begun = registry.do_request(f"{registry.prefix}://{image.upload_blob_url()}", "POST")
            where = registry._get_location(_accepted(begun, f"a blob of {image}"), image)
            headers = {"Content-Type": "application/octet-stream"}
            url = f"{where}{'&' if '?' in where else '?'}digest={described['digest']}"
            _accepted(registry.do_request(url, "PUT", data=content, headers=headers), f"a blob of {image}")
        return described


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _accepted(answer: Any, what: str) -> Any:
    if answer.status_code not in (200, 201, 202):
        raise SystemExit(f"error: the registry did not take {what}: {answer.status_code} {answer.text[:500]}")
    return answer
