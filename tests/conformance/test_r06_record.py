"""R-06: every execution leaves a record of who, when, where, with which limits and what end; never the code."""

import base64
import hashlib
import json

import pytest
from cluster_tools import SANDBOX, SYSTEM, a_name, a_secret

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-06")]


async def test_record_tells_all_but_the_code(control, sandbox):
    """The record holds times, executor, agent, language, pod, image, limits, exit status and the code's SHA-256."""
    code = "import sys; print('x' * 10); sys.exit(3)"
    result = await sandbox.run(code, agent="auditor", timeout=33)
    record = sandbox.record(result)
    spec, status = record["spec"], record["status"]
    digest = hashlib.sha256(code.encode()).hexdigest()
    altered = hashlib.sha256(code.replace("3", "0").encode()).hexdigest()
    control.succeeded("code that differs in one character has another digest", altered != digest)
    assert spec["blocks"] == [{"language": "python", "sha256": digest, "sizeBytes": len(code)}]
    assert spec["source"] == {"agent": "auditor", "executor": "KubernetesCodeExecutor"}
    assert (spec["timeoutSeconds"], spec["limits"]["cpu"], spec["limits"]["memory"]) == (33, "300m", "128Mi")
    assert record["metadata"]["creationTimestamp"] <= status["startedAt"] <= status["finishedAt"]
    assert (status["phase"], status["reason"], status["exitCode"]) == ("Failed", "NonZeroExit", 3)
    assert status["imageID"].endswith(status["image"].split("@")[1])
    assert status["podName"]
    assert status["nodeName"]
    assert status["codeDigest"].startswith("sha256:")
    output = b"xxxxxxxxxx\n"
    assert status["stdout"]["sha256"] == hashlib.sha256(output).hexdigest()
    assert status["stdout"]["totalBytes"] == status["blocks"][0]["stdoutBytes"] == len(output)


def _spellings(text: str) -> list[str]:
    """A text as it may stand in YAML, JSON or a Secret: plain, in hexadecimal, in base64 at each of three offsets."""
    raw = text.encode()
    shifted = [base64.b64encode(b"x" * offset + raw).decode()[4:-4] for offset in range(3)]
    return [text, raw.hex(), *shifted]


def _places_that_hold(texts, admin) -> list[set[str]]:
    """For each text, the kinds of objects in the whole cluster and the logs in which it stands."""
    kinds = admin.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    # One kind after the other: the output of other tests makes some of these lists large.
    lists = [admin.kubectl("get", kind, "--all-namespaces", "-o", "json") for kind in kinds]
    objects = [one for text in lists for one in json.loads(text)["items"]]
    places = [(one["kind"], json.dumps(one)) for one in objects]
    places.append(("log", admin.kubectl("-n", SYSTEM, "logs", "deployment/codeexec-operator", "--since=10m")))
    pods = [one["metadata"] for one in objects if one["kind"] == "Pod"]
    names = [pod["name"] for pod in pods if pod["namespace"] == SANDBOX]
    places += [("log", admin.try_kubectl("-n", SANDBOX, "logs", name).stdout) for name in names[-5:]]
    return [
        {kind for kind, content in places if any(spelling in content for spelling in _spellings(text))}
        for text in texts
    ]


async def test_text_of_the_code_is_nowhere(control, sandbox, admin, make_control_pod):
    """The text of the code stands in no object of the cluster, no event and no log, neither plain nor encoded."""
    markers = [a_name("conformance-marker-of-code") for _ in range(3)]
    codes = [f"marker = {marker!r}; print(len(marker))" for marker in markers]
    codes[2] += f" #{'x' * 20_000}"  # too large to be sealed into the record: it goes by a Secret
    orphan = a_name("orphan")
    admin.apply(a_secret(orphan, {"block-0": codes[0].encode()}))
    make_control_pod(a_name("talker"), {"command": ["python3", "-c", f"{codes[0]}; import time; time.sleep(600)"]})
    results = [await sandbox.run(code) for code in codes[1:]]
    assert [result.output for result in results] == [f"{len(marker)}\n" for marker in markers[1:]]
    assert ["sealedPayload" in sandbox.record(result)["spec"] for result in results] == [True, False]
    there, sealed, by_secret = _places_that_hold(markers, admin)
    admin.kubectl("-n", SANDBOX, "delete", "secret", orphan)
    control.succeeded(
        "the same search found the code in a pod that had it as its command, and in a payload that nobody took up",
        there >= {"Pod", "Secret"},
    )
    assert (sealed, by_secret) == (set(), set())
