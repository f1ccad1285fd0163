"""Keeps bundles beside an image, in its registry: as OCI 1.1 referrers."""

import hashlib
import json
import re
from typing import Any, Final
from urllib.parse import urljoin

import requests
from docker.auth import load_config

from codeexec_api.image_signatures import BUNDLE_TYPES

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER: Final = "application/vnd.docker.distribution.manifest.v2+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"
_LOCAL: Final = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
"""Registries that are spoken to without TLS, as Docker does."""
_SECONDS: Final = 60


class Repository:
    """That of one image. Credentials are Docker's: `docker login` and its credential helpers."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        name, _, self._image = reference.partition("@")
        registry, _, repository = re.sub(r":[^/]*$", "", name).partition("/") if "/" in name else ("", "", name)
        if not re.search(r"[.:]|^localhost$", registry):
            raise SystemExit(f"error: {reference} names no registry (allowed: REGISTRY/NAME@sha256:…)")
        self._registry = registry
        local = _LOCAL.fullmatch(registry) is not None
        self._base = f"{'http' if local else 'https'}://{registry}/v2/{repository}/"
        self._session = requests.Session()
        self._session.trust_env = not local  # no proxy for what is here

    def attach(self, bundle: str, predicate_type: str) -> None:
        """Put a bundle beside the image. One that is there already stays as it is."""
        subject = self._describe_image()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": BUNDLE_TYPES[0],
            "config": self._upload(b"{}", _EMPTY),
            "layers": [self._upload(bundle.encode(), BUNDLE_TYPES[0])],
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
            self._list({**of_it, "digest": digest, "size": len(content)})

    def _describe_image(self) -> dict[str, Any]:
        accept = f"{_MANIFEST}, {_INDEX}, {_DOCKER}"
        answer = self._ask("HEAD", f"manifests/{self._image}", headers={"Accept": accept})
        if answer.status_code != 200:
            why = f"{answer.status_code} {answer.reason}"
            raise SystemExit(f"error: the registry does not show {self._reference} ({why}): push the image first")
        kind, size = answer.headers["Content-Type"], int(answer.headers["Content-Length"])
        return {"mediaType": kind, "digest": self._image, "size": size}

    def _list(self, referrer: dict[str, Any]) -> None:
        """Add a manifest to those that the image's own tag lists."""
        tag = self._image.replace(":", "-")
        answer = self._ask("GET", f"manifests/{tag}", headers={"Accept": _INDEX})
        known = answer.json()["manifests"] if answer.status_code == 200 else []
        if all(one["digest"] != referrer["digest"] for one in known):
            index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [*known, referrer]}
            self._put(tag, json.dumps(index, separators=(",", ":")).encode(), _INDEX)

    def _put(self, name: str, content: bytes, kind: str) -> requests.Response:
        answer = self._ask("PUT", f"manifests/{name}", data=content, headers={"Content-Type": kind})
        return self._accepted(answer)

    def _upload(self, content: bytes, kind: str) -> dict[str, Any]:
        """A blob, if it isn't there; returns its descriptor."""
        digest = _digest(content)
        if self._ask("HEAD", f"blobs/{digest}").status_code != 200:
            where = self._accepted(self._ask("POST", "blobs/uploads/")).headers["Location"]
            url = f"{where}{'&' if '?' in where else '?'}digest={digest}"
            headers = {"Content-Type": "application/octet-stream"}
            self._accepted(self._ask("PUT", url, data=content, headers=headers))
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def _ask(self, method: str, path: str, **options: Any) -> requests.Response:
        url = urljoin(self._base, path)
        answer = self._session.request(method, url, timeout=_SECONDS, **options)
        if answer.status_code == 401 and self._log_in(answer.headers.get("WWW-Authenticate", "")):
            answer = self._session.request(method, url, timeout=_SECONDS, **options)
        return answer

    def _log_in(self, challenge: str) -> bool:
        """Get what the registry wants to see, by Docker's credentials if there are any; true if that was possible."""
        found = load_config().resolve_authconfig(self._registry) or {}
        known = {name.lower(): value for name, value in found.items()}
        login = (known["username"], known["password"]) if known.get("password") else None
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            self._session.auth = login
            return login is not None
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if scheme.lower() != "bearer" or "realm" not in asked:
            return False
        answer = self._session.get(asked.pop("realm"), params=asked, auth=login, timeout=_SECONDS)
        token = answer.json() if answer.ok else {}
        self._session.headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token')}"
        return bool(token)

    def _accepted(self, answer: requests.Response) -> requests.Response:
        if not answer.ok:
            why = f"{answer.status_code} {answer.reason} {answer.text[:500]}"
            raise SystemExit(f"error: the registry did not take what belongs to {self._reference}: {why}")
        return answer


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
