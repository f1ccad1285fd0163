"""What the API server answers when it refuses, in our words: what is wrong, and what to do about it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from kubernetes.aio.client.exceptions import ApiException

from executor_client.exceptions import CodeExecError, InvalidExecution, NotFound, NotInstalled, NotPermitted
from executor_client.model.words import option

_INVALID: Final = (400, 422)
"""What it answers to an object that breaks a rule."""
_OF_NO_USE: Final = re.compile(
    r'Invalid value: (?:"(?:object|array|string|integer|number|boolean)": |(?!["\d\[{-]|true|false|null))'
    r"|ValidatingAdmissionPolicy .* denied request: "
)
"""What the API server puts before the words of a rule: the type (not in 1.36), and the value where that is wrong."""


def translate(doing: str, namespace: str, error: ApiException) -> CodeExecError:
    """The error that a caller hears of; `doing` says in which attempt."""
    body = str(error.body or error.reason)
    broken = _broken_rules(body) if error.status in _INVALID else ""
    why = broken or f"{error.status} {message(body)}"
    text = f"could not {doing} in namespace {namespace!r}: {why}"
    if error.status == 401:
        return NotPermitted(
            f"{text}; the credentials in the kubeconfig are not valid, or have expired; create a new "
            "token, or log in again"
        )
    if error.status == 403 and "status unknown for quota" in body:
        return NotPermitted(f"{text}; the namespace or its quota is new: try again in a few minutes")
    if error.status == 403 and "exceeded quota" in body:
        return NotPermitted(
            f"{text}; wait until other executions end, or ask the platform owner to raise the quota or to delete "
            "records"
        )
    if error.status == 403:
        return NotPermitted(
            f"{text}; ask the platform owner to bind the Role 'codeexec-agent' to this identity, or the Role "
            "'codeexec-approver' if it only approves and denies"
        )
    if error.status == 404 and (what := missing(body)):
        return NotFound(f"{text}; list them with `kubectl -n {namespace} get {what}`")
    if error.status == 404 and "namespaces" in body:
        return NotInstalled(f"{text}; pass {option('namespace')} with a sandbox namespace of the codeexec installation")
    if error.status == 404:
        return NotInstalled(f"{text}; the CRDs are missing: install the codeexec Helm chart into this cluster")
    if error.status in _INVALID and "unknown field" in why:
        return InvalidExecution(
            f"{text}; the CRDs in this cluster are older than this client: upgrade the codeexec Helm chart and its "
            "CRDs, or install the client of the chart's version"
        )
    if error.status in _INVALID:
        return InvalidExecution(text)
    return CodeExecError(text)


def _status(body: str) -> dict[str, Any]:
    """The API server's Status object, empty if the body is none."""
    try:
        status = json.loads(body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def message(body: str) -> str:
    """What a refusal says in words."""
    return str(_status(body).get("message", body))


def _broken_rules(body: str) -> str:
    """The messages of the rules that an object breaks, each with its field; empty if the answer is about no rule."""
    details = _status(body).get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return "; ".join(_broken_rule(cause) for cause in causes or ())


def _broken_rule(cause: Mapping[str, Any]) -> str:
    field, message = str(cause.get("field", "")), str(cause.get("message", ""))
    told = _OF_NO_USE.sub("", message, count=1)
    return told if field in ("", "<nil>", "spec") or field in told else f"{field}: {told}"


def missing(body: str) -> str:
    """Kind (plural) of the one object that is missing; empty if it is its whole kind or its namespace."""
    details = _status(body).get("details")
    kind = str(details.get("kind", "")) if isinstance(details, dict) and details.get("name") else ""
    return "" if kind == "namespaces" else kind
