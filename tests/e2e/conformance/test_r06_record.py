"""R-06: every execution leaves a record of who, when, where, with which limits and what end; never the code."""

import base64
import hashlib

import pytest
from api_server import Refusal, discover
from cluster_tools import SANDBOX, SYSTEM, a_name, a_secret, wait_for
from conformance.sandbox import ALONE, BESIDE_OTHERS

from executor_client import ClusterRef, CodeExecutionClient, Limits, Request
from executor_client.model.blocks import SourceBlock, prepare

pytestmark = pytest.mark.remit("R-06")


async def test_record_tells_all_but_the_code(control, sandbox):
    """The record holds times, executor, agent, language, pod, image, limits, exit status and the code's SHA-256."""
    code = "import sys; print('x' * 10); sys.exit(3)"
    result = await sandbox.run(code, agent="auditor", timeout=33, limits=ALONE)
    record = sandbox.record(result)
    spec, status = record["spec"], record["status"]
    digest = hashlib.sha256(code.encode()).hexdigest()
    altered = hashlib.sha256(code.replace("3", "0").encode()).hexdigest()
    control.succeeded("code that differs in one character has another digest", altered != digest)
    assert spec["blocks"] == [{"language": "python", "sha256": digest, "sizeBytes": len(code)}]
    assert spec["source"] == {"agent": "auditor", "executor": "KubernetesCodeExecutor"}
    assert (spec["timeoutSeconds"], spec["limits"]["cpu"], spec["limits"]["memory"]) == (33, "200m", "128Mi")
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


def _lists(admin):
    """Kind and text of every list that the API server gives: all objects of the whole cluster."""
    kinds = {
        (one.api_version.rpartition("/")[0], one.plural): one for one in reversed(list(discover(admin.connection)))
    }
    for one in kinds.values():
        try:
            yield one.kind, admin.connection.request("GET", one.path(None)).data.decode()
        except Refusal as refusal:
            if refusal.code not in (404, 405):  # some kinds can be created and no more
                raise


def _places_that_hold(texts, admin, pods) -> list[set[str]]:
    """For each text, the kinds of objects in the whole cluster and the logs in which it stands."""
    places = [*_lists(admin), *(("log", admin.logs(namespace, name)) for namespace, name in pods)]
    operators = admin.list("pod", SYSTEM, labels="app.kubernetes.io/component=operator")
    places += [("log", admin.logs(SYSTEM, one["metadata"]["name"], sinceSeconds=600)) for one in operators]
    return [
        {kind for kind, content in places if any(spelling in content for spelling in _spellings(text))}
        for text in texts
    ]


async def test_text_of_the_code_is_nowhere(control, sandbox, admin, make_control_pod):
    """The text of the code stands in no object of the cluster, no event and no log, neither plain nor encoded."""
    markers = [a_name("conformance-marker-of-code") for _ in range(3)]
    codes = [f"marker = {marker!r}; print(len(marker))" for marker in markers]
    codes[2] += f" #{'x' * 20_000}"  # too large to be sealed into the record: it goes by a Secret
    orphan, talker = a_name("orphan"), a_name("talker")
    admin.create(a_secret(orphan, {"block-0": codes[0].encode()}))
    told = f"print({codes[0]!r}, flush=True); import time; time.sleep(600)"
    talks = make_control_pod(talker, {"command": ["python3", "-c", told]})
    wait_for("the talker to have said it", lambda: markers[0] in admin.logs(talks.namespace, talker))
    session = sandbox.session(limits=BESIDE_OTHERS)  # its pod, and with it the log, is there after the calls
    results = [await sandbox.run(code, at=session) for code in codes[1:]]
    assert [result.output for result in results] == [f"{len(marker)}\n" for marker in markers[1:]]
    records = [sandbox.record(result) for result in results]
    assert ["sealedPayload" in record["spec"] for record in records] == [True, False]
    [pod] = {record["status"]["podName"] for record in records}
    assert admin.logs(SANDBOX, pod), "the pod of the executions has a log"
    there, sealed, by_secret = _places_that_hold(markers, admin, [(talks.namespace, talker), (SANDBOX, pod)])
    admin.delete("secret", orphan)
    control.succeeded(
        "the same search found the code in a pod that had it as its command, in that pod's log, and in a payload that "
        "nobody took up",
        there >= {"Pod", "Secret", "log"},
    )
    assert (sealed, by_secret) == (set(), set())


HOOK = """
def twice(text):
    import sys
    sys.stdout.write(f"{text}, said the first agent's code\\n")
print = twice
"""


async def test_each_record_of_a_shared_session_names_who_submitted_it(
    control, sandbox, admin, agent_kubeconfig, kubeconfig
):
    """Of two identities in one stateful session, each record names its own, with the digest of what it submitted.

    What the first one's code left in the interpreter acts in the second one's call: that output is in the record of the
    call in which it was written.
    """
    limits = Limits(cpu="500m", memory="192Mi")
    first = sandbox.session(agent="first", stateful=True, limits=limits)
    planted = await sandbox.run(HOOK, at=first)
    before = sandbox.record(planted)
    session_name = before["spec"]["sessionRef"]["name"]

    code = "print('mine')"
    client = CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig))
    session = await client.join_session(session_name, Request(agent="first", executor="conformance"))
    result = await session.execute(prepare([SourceBlock("python", code)]).blocks)
    await client.close()
    after = admin.execution(result.name)
    control.succeeded(
        "the second identity could take the first one's name as `source.agent`, which is only the client's claim",
        after["spec"]["source"]["agent"] == before["spec"]["source"]["agent"] == "first",
    )
    agent = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
    assert before["spec"]["requestedBy"] == agent
    assert after["spec"]["requestedBy"] == admin.me != agent
    assert admin.get("codesession", session_name)["spec"]["requestedBy"] == agent
    assert after["spec"]["blocks"][0]["sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert result.stdout == "mine, said the first agent's code\n"
    assert sandbox.record(planted) == before
