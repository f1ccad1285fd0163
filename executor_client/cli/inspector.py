"""Requests to the API server that only `codeexec doctor` makes."""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from executor_client.cli.diagnosis import Right
from executor_client.transport.kube_api import OURS, KubeApi


@dataclass(frozen=True)
class Server:
    """What the API server reports about itself."""

    address: str
    version: str
    date: datetime | None
    """The time by its clock, in whole seconds."""


class Inspector(KubeApi):
    """A connection with additional requests. Only the one for RuntimeClasses needs a right.

    Raises:
        CodeExecError: of all methods: see `exceptions`.
    """

    async def server(self) -> Server:
        """Version and clock of the API server."""
        with self.errors("ask for the version"):
            try:
                answer = await client.VersionApi(self.client).get_code_with_http_info()
                date = (answer.headers or {}).get("Date")
                return Server(self.host, answer.data.git_version, parsedate_to_datetime(date) if date else None)
            except ValueError as error:
                raise ApiException(status=200, reason="the answer is not that of a Kubernetes API server") from error

    async def kinds(self) -> frozenset[str]:
        """The codeexec kinds that the API server knows."""
        with self.errors("list the kinds"):
            found = await self.find(OURS)
        return frozenset(one["kind"] for one in found["resources"]) if found else frozenset()

    async def may(self, right: Right) -> bool:
        """Ask whether this identity has a right in the namespace."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": self.namespace,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "verb": right.verb,
        }
        review = {"spec": {"resourceAttributes": attributes}}
        with self.errors("ask for rights"):
            answer = await self.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        return bool(answer["status"]["allowed"])

    async def runtime_class_exists(self, name: str) -> bool | None:
        """Ask whether a RuntimeClass exists. None: this identity may not read RuntimeClasses."""
        with self.errors("read the RuntimeClass"):
            try:
                return await self.find(runtime_class_path(name)) is not None
            except ApiException as error:
                if error.status != 403:
                    raise
                return None


def runtime_class_path(name: str) -> str:
    """The path of a RuntimeClass."""
    return f"/apis/node.k8s.io/v1/runtimeclasses/{quote(name, safe='')}"
