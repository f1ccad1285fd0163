"""What the API server says when it refuses a pod, as the record has it: its words, and no JSON around them."""

import json

import pytest
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import Reason
from codeexec_operator.adapters.api_server import message_of
from codeexec_operator.adapters.cluster import _pod_refused

QUOTA = 'pods "run-1" is forbidden: exceeded quota: sandboxes, requested: pods=1, used: pods=9, limited: pods=9'
CLASS = 'pods "run-1" is forbidden: pod rejected: RuntimeClass "gvisor" not found'


@pytest.mark.parametrize(
    ("said", "reason", "told"),
    [
        (QUOTA, Reason.QUOTA_EXCEEDED, "wait until other executions end, or raise the quota. " + QUOTA),
        (CLASS, Reason.RUNTIME_CLASS_NOT_FOUND, "or install it. " + CLASS),
        ("no pods today", Reason.POD_REFUSED, "the API server refused the pod: no pods today"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_api_server(said: str, reason: Reason, told: str) -> None:
    body = json.dumps({"kind": "Status", "status": "Failure", "code": 403, "message": said})
    fault = _pod_refused(message_of(ApiException(status=403, reason="Forbidden", body=body)))
    assert fault.reason is reason
    assert fault.message.endswith(told)


@pytest.mark.parametrize("body", ["plain text", '["a list"]', "", '{"kind":"Status"}'])
def test_what_is_no_status_is_told_as_it_is(body: str) -> None:
    assert message_of(ApiException(status=400, reason="Bad Request", body=body)) == (body or "Bad Request")
