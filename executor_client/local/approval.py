"""When running on this machine needs a human's approval (R-13): pure functions of the environment and of `now`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

from executor_client.exceptions import LocalRunNotApproved

_PRODUCTION = frozenset({"production", "prod", "live"})
_OWN_VARIABLE = "CODEEXEC_ENVIRONMENT"
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
_RESOURCE_KEYS = ("deployment.environment.name", "deployment.environment")
_IN_A_POD = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True)
class LocalApproval:
    """That a human has approved of running agents' code on this machine, although it is in production.

    This is a declaration by the application that passes it, recorded on the span of each call. It is no proof: whoever
    writes the application can write one. It is no part of a component's JSON, which agents may write.

    Args:
        approver: the human who has approved, such as a mail address.
        reason: why it is needed.
        expires_at: when it ends; with a time zone.

    Raises:
        ValueError: approver or reason is empty, or expires_at has no time zone.
    """

    approver: str
    reason: str
    expires_at: datetime

    def __post_init__(self) -> None:
        for name, text in (("approver", self.approver), ("reason", self.reason)):
            if not text.strip():
                raise ValueError(f"{name} is {text!r}, but must not be empty: say who has approved, and why")
        if self.expires_at.tzinfo is None:
            raise ValueError(
                f"expires_at is {self.expires_at.isoformat()}, but must have a time zone, such as "
                "datetime(2030, 1, 31, tzinfo=UTC)"
            )


def signs_of_production(environ: Mapping[str, str]) -> list[str]:
    """What in the environment says that this is production; one sign is enough, and none takes another back."""
    signs = []
    own = environ.get(_OWN_VARIABLE, "")
    if _says_production(own):
        signs.append(f"{_OWN_VARIABLE}={own}")
    for attribute in environ.get(_RESOURCE, "").split(","):
        key, _, value = attribute.partition("=")
        if key.strip() in _RESOURCE_KEYS and _says_production(unquote(value)):
            signs.append(f"{key.strip()}={unquote(value).strip()} in {_RESOURCE}")
    if environ.get(_IN_A_POD):
        signs.append(f"{_IN_A_POD} is set: this is a pod of a Kubernetes cluster")
    return signs


def demand_approval(environ: Mapping[str, str], approval: LocalApproval | None, now: datetime) -> None:
    """Refuse production without an approval that holds.

    Raises:
        LocalRunNotApproved: it names the signs of production, and what to do.
    """
    signs = signs_of_production(environ)
    if not signs or (approval and now < approval.expires_at):
        return
    lacking = (
        f"the approval by {approval.approver} expired at {approval.expires_at.isoformat()}"
        if approval
        else "there is no approval"
    )
    raise LocalRunNotApproved(
        f"this is production ({'; '.join(signs)}), where running agents' code on this machine needs a human's "
        f"approval, and {lacking}. Nothing was run. Use KubernetesCodeExecutor, or pass "
        "approval=LocalApproval(approver=..., reason=..., expires_at=...)"
    )


def _says_production(value: str) -> bool:
    """Whether a word of it does: `prod-eu` as well as `Production`, and, to be safe, `non-prod`."""
    return not _PRODUCTION.isdisjoint(re.split(r"[^a-z]+", value.lower()))
