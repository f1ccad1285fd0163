"""A value that is wrong or unknown is refused, with a message that names the field."""

import re

import pytest
import yaml
from chart.helm import CHART, template

SHA256 = "sha256:" + "0" * 64

REFUSED = {
    "unknown value": (["--set", "replicas=2"], "additional properties 'replicas' not allowed"),
    "unknown value below": (["--set", "operator.replica=2"], "/operator': additional properties 'replica'"),
    "tag instead of a digest": (["--set", "image.tag=latest"], "/image': additional properties 'tag' not allowed"),
    "tag in the repository": (["--set", "image.repository=registry.example/operator:1.0"], "/image/repository'"),
    "digest in the repository": (["--set", f"sandbox.image.repository=box@{SHA256}"], "/sandbox/image/repository'"),
    "short digest": (["--set", "image.digest=sha256:abc"], "/image/digest'"),
    "digest without its algorithm": (["--set-string", f"image.digest={SHA256[7:]}"], "/image/digest'"),
    "no operator image": (["--set", "image.repository="], "image.repository is empty: set it"),
    "no operator digest": (["--set", "image.digest="], "image.digest is empty: set it"),
    "no sandbox image": (["--set", "sandbox.image.repository="], "sandbox.image.repository is empty: set it"),
    "no sandbox digest": (["--set", "sandbox.image.digest="], "sandbox.image.digest is empty: set it"),
    "no PEM for a key": (
        ["--set", "sandbox.imageVerification.publicKeys=abc"],
        "/sandbox/imageVerification/publicKeys'",
    ),
    "a private key": (
        ["--set", "sandbox.imageVerification.publicKeys=-----BEGIN PRIVATE KEY-----"],
        "/sandbox/imageVerification/publicKeys'",
    ),
    "a key and no signature": (
        ["--set", "sandbox.imageVerification.publicKeys=-----BEGIN PUBLIC KEY-----"],
        "sandbox.imageVerification.publicKeys is set, but no image has a signature",
    ),
    "a signature that is no bundle": (["--set", "sandbox.image.signature=MEUCIQ"], "/sandbox/image/signature'"),
    "a repository with a digest": (
        ["--set", f"sandbox.allowedRepositories={{box@{SHA256}}}"],
        "/sandbox/allowedRepositories/0'",
    ),
    "all repositories": (["--set", "sandbox.allowedRepositories={/}"], "/sandbox/allowedRepositories/0'"),
    "a repository that ends an expression": (
        ["--set-json", """sandbox.allowedRepositories=["x'] || true || '' in ['"]"""],
        "/sandbox/allowedRepositories/0'",
    ),
    "unknown pull policy": (["--set", "image.pullPolicy=Sometimes"], "/image/pullPolicy'"),
    "credentials in the URL of an output store": (
        ["--set", "outputStore.url=s3://key:secret@bucket"],
        "/outputStore/url'",
    ),
    "checkpoints without a key": (
        ["--set", "audit.checkpoints.enabled=true,audit.checkpoints.claimName=x"],
        "audit.checkpoints.signingKeySecret.name is empty",
    ),
    "checkpoints without a place": (
        ["--set", "audit.checkpoints.enabled=true,audit.checkpoints.signingKeySecret.name=x"],
        'audit.checkpoints.claimName is "" and audit.checkpoints.destination is "": set one of the two',
    ),
    "checkpoints in two places": (
        [
            "--set=audit.checkpoints.enabled=true,audit.checkpoints.signingKeySecret.name=x",
            "--set=audit.checkpoints.claimName=x,audit.checkpoints.destination=s3://y",
        ],
        'audit.checkpoints.claimName is "x" and audit.checkpoints.destination is "s3://y": set one of the two',
    ),
    "an export without a place": (
        ["--set", "audit.export.enabled=true"],
        'audit.export.claimName is "" and audit.export.destination is "": set one of the two',
    ),
    "records that go too soon": (["--set", "policy.records.maxAgeSeconds=299"], "/policy/records/maxAgeSeconds'"),
    "no records at all": (["--set", "policy.records.maxCount=0"], "/policy/records/maxCount'"),
    "checkpoints on the pod's own disk": (
        ["--set", "audit.checkpoints.destination=file:///tmp"],
        "/audit/checkpoints/destination'",
    ),
    "checkpoints at no time": (["--set", "audit.checkpoints.schedule=often"], "/audit/checkpoints/schedule'"),
    "no sandbox namespace": (["--set-json", "sandbox.namespaces=[]"], "/sandbox/namespaces'"),
    "one namespace as text": (["--set", "sandbox.namespaces=codeexec-sandbox"], "/sandbox/namespaces'"),
    "impossible namespace": (["--set", "sandbox.namespaces={Code_Exec}"], "/sandbox/namespaces/0'"),
    "namespace named twice": (["--set", "sandbox.namespaces={box,box}"], "/sandbox/namespaces'"),
    "the release's own namespace": (
        ["--set", "sandbox.namespaces={codeexec-system}"],
        'sandbox.namespaces contains "codeexec-system"',
    ),
    "a choice by Helm without a cluster": (
        ["--set", "policy.runtimeClassName=auto"],
        "policy.runtimeClassName is auto, but Helm renders the chart without a cluster",
    ),
    "no runtime class": (["--set", "policy.runtimeClassName="], "/policy/runtimeClassName'"),
    "yes for true": (["--set-string", "sandbox.createNamespaces=yes"], "/sandbox/createNamespaces'"),
    "a user that ends an expression": (
        ["--set-json", """sandbox.breakGlassUsers=["x'] || true || '' in ['"]"""],
        "/sandbox/breakGlassUsers/0'",
    ),
    "annotators as a switch": (["--set", "sandbox.annotators=true"], "/sandbox/annotators'"),
    "an address without a prefix": (["--set", "sandbox.neverPermit={203.0.113.4}"], "/sandbox/neverPermit/0'"),
    "no replica": (["--set", "operator.replicas=0"], "/operator/replicas'"),
    "a Lease that any hiccup ends": (["--set", "operator.leaseSeconds=1"], "/operator/leaseSeconds'"),
    "unknown language": (["--set", "policy.languages={python,perl}"], "/policy/languages/1'"),
    "no language": (["--set-json", "policy.languages=[]"], "/policy/languages'"),
    "egress as a switch": (["--set", "policy.egress=true"], "/policy/egress'"),
    "egress to anywhere": (["--set", "policy.egress[0].port=443"], "/policy/egress/0'"),
    "egress by any port": (["--set-string", "policy.egress[0].cidr=10.0.0.0/8"], "/policy/egress/0'"),
    "egress to a host": (
        ["--set", "policy.egress[0].host=example.org,policy.egress[0].port=443"],
        "/policy/egress/0': additional properties 'host' not allowed",
    ),
    "egress to a bare address": (
        ["--set", "policy.egress[0].cidr=10.1.2.3,policy.egress[0].port=443"],
        "/policy/egress/0/cidr'",
    ),
    "approvable egress to every pod": (
        ["--set-json", 'policy.withApproval.egress=[{"podSelector":{"matchLabels":{}},"port":443}]'],
        "/policy/withApproval/egress/0/podSelector/matchLabels'",
    ),
    "folder of the nodes": (
        ["--set", "policy.mounts[0].hostPath.path=/etc"],
        "/policy/mounts/0': additional properties 'hostPath' not allowed",
    ),
    "mount of two things": (
        ["--set", "policy.mounts[0].configMap.name=a,policy.mounts[0].persistentVolumeClaim.claimName=b"],
        "/policy/mounts/0'",
    ),
    "code rules as a switch": (["--set", "policy.codeRules=true"], "/policy/codeRules'"),
    "nothing about code": (["--set", "policy.codeRules=null"], "/policy': missing property 'codeRules'"),
    "code rule without an action": (["--set", "policy.codeRules[0].imports={os}"], "/policy/codeRules/0'"),
    "code rule that warns": (
        ["--set-json", 'policy.codeRules=[{"imports":["os"],"action":"Warn"}]'],
        "/policy/codeRules/0/action'",
    ),
    "code rule with a pattern": (
        ["--set-json", 'policy.agentRules=[{"agent":"a","codeRules":[{"imports":["os.*"],"action":"Note"}]}]'],
        "/policy/agentRules/0/codeRules/0/imports/0'",
    ),
    "approval as a switch": (["--set", "policy.withApproval=true"], "/policy/withApproval'"),
    "nothing about approval": (["--set", "policy.withApproval=null"], "/policy': missing property 'withApproval'"),
    "unknown in what is approvable": (
        ["--set", "policy.withApproval.maxSessionIdleSeconds=60"],
        "/policy/withApproval': additional properties 'maxSessionIdleSeconds' not allowed",
    ),
    "output that can't be approved": (
        ["--set", "policy.withApproval.maxLimits.outputBytes=4096"],
        "/policy/withApproval/maxLimits': additional properties 'outputBytes' not allowed",
    ),
    "approvable image by tag": (
        ["--set", "policy.withApproval.images={registry.example/science:1}"],
        "/policy/withApproval/images/0'",
    ),
    "unknown approvable language": (
        ["--set", "policy.withApproval.languages={perl}"],
        "/policy/withApproval/languages/0'",
    ),
    "zero approvable cpu": (
        ["--set-string", "policy.withApproval.maxLimits.cpu=0"],
        "/policy/withApproval/maxLimits/cpu'",
    ),
    "no time to decide": (["--set", "policy.approvalTimeoutSeconds=0"], "/policy/approvalTimeoutSeconds'"),
    "two days to decide": (["--set", "policy.approvalTimeoutSeconds=172800"], "/policy/approvalTimeoutSeconds'"),
    "rules by name": (["--set", "policy.agentRules.builder.maxBlocks=1"], "/policy/agentRules'"),
    "rule for everybody": (["--set", "policy.agentRules[0].maxBlocks=1"], "/policy/agentRules/0'"),
    "rule for nobody": (["--set-json", 'policy.agentRules=[{"agent":""}]'], "/policy/agentRules/0/agent'"),
    "unknown in a rule": (
        ["--set", "policy.agentRules[0].agent=me,policy.agentRules[0].maxSessionIdleSeconds=60"],
        "/policy/agentRules/0': additional properties 'maxSessionIdleSeconds' not allowed",
    ),
    "rule without a language": (
        ["--set-json", 'policy.agentRules=[{"agent":"me","languages":[]}]'],
        "/policy/agentRules/0/languages'",
    ),
    "rule without an image": (
        ["--set-json", 'policy.agentRules=[{"agent":"me","images":[]}]'],
        "/policy/agentRules/0/images'",
    ),
    "rule with too much": (
        ["--set", "policy.agentRules[0].agent=me,policy.agentRules[0].withApproval.maxBlocks=65"],
        "/policy/agentRules/0/withApproval/maxBlocks'",
    ),
    "code for approvers as text": (["--set-string", "approvers.readCode=yes"], "/approvers/readCode'"),
    "nothing about code for approvers": (
        ["--set", "approvers.readCode=null"],
        "/approvers': missing property 'readCode'",
    ),
    "zero timeout": (["--set", "policy.maxTimeoutSeconds=0"], "/policy/maxTimeoutSeconds'"),
    "timeout as a duration": (["--set", "policy.maxTimeoutSeconds=10m"], "/policy/maxTimeoutSeconds'"),
    "too many blocks": (["--set", "policy.maxBlocks=65"], "/policy/maxBlocks'"),
    "zero cpu": (["--set-string", "policy.maxLimits.cpu=0"], "/policy/maxLimits/cpu'"),
    "nothing requested": (["--set-string", "policy.requests.memory=0"], "/policy/requests/memory'"),
    "a request left out": (["--set", "policy.requests.cpu=null"], "/policy/requests': missing property 'cpu'"),
    "unknown unit": (["--set", "policy.maxLimits.memory=1GB"], "/policy/maxLimits/memory'"),
    "negative storage": (["--set", "policy.maxLimits.ephemeralStorage=-1"], "/policy/maxLimits/ephemeralStorage'"),
    "Kubernetes' spelling of a limit": (
        ["--set", "policy.maxLimits.ephemeral-storage=1Gi"],
        "/policy/maxLimits': additional properties 'ephemeral-storage' not allowed",
    ),
    "more output than is kept": (
        ["--set", "policy.maxLimits.outputBytes=134217729"],
        "/policy/maxLimits/outputBytes'",
    ),
    "negative time to live": (["--set", "policy.podTTLSeconds=-1"], "/policy/podTTLSeconds'"),
    "output for a moment": (["--set", "policy.outputTTLSeconds=59"], "/policy/outputTTLSeconds'"),
    "output for two months": (["--set", "policy.outputTTLSeconds=5184000"], "/policy/outputTTLSeconds'"),
    "another spelling of TTL": (
        ["--set", "policy.outputTtlSeconds=60"],
        "/policy': additional properties 'outputTtlSeconds' not allowed",
    ),
    "no time for a session": (["--set", "policy.maxSessionLifetimeSeconds=0"], "/policy/maxSessionLifetimeSeconds'"),
    "session of eight days": (
        ["--set", "policy.maxSessionLifetimeSeconds=691200"],
        "/policy/maxSessionLifetimeSeconds'",
    ),
    "idle limit as a duration": (["--set", "policy.maxSessionIdleSeconds=1h"], "/policy/maxSessionIdleSeconds'"),
    "extra image by tag": (["--set", "policy.extraImages={registry.example/science:1}"], "/policy/extraImages/0'"),
    "removed value": (["--set", "policy.maxBlocks=null"], "/policy': missing property 'maxBlocks'"),
    "no pods": (["--set", "resourceQuota.pods=0"], "/resourceQuota/pods'"),
    "no ConfigMap but Kubernetes' own": (["--set", "resourceQuota.configMaps=1"], "/resourceQuota/configMaps'"),
    "no Lease": (["--set", "resourceQuota.leases=0"], "/resourceQuota/leases'"),
    "unknown quota": (["--set", "resourceQuota.gpus=1"], "/resourceQuota': additional properties 'gpus'"),
    "crds as a switch": (["--set", "crds=false"], "/crds'"),
    "unknown log level": (["--set", "operator.logLevel=trace"], "/operator/logLevel'"),
    "unknown resource": (
        ["--set", "operator.resources.limits.gpu=1"],
        "/operator/resources/limits': additional properties 'gpu' not allowed",
    ),
    "port that doesn't exist": (
        ["--set", "operator.networkPolicy.apiServerPorts={70000}"],
        "/operator/networkPolicy/apiServerPorts/0'",
    ),
    "number as a label": (["--set", "operator.podLabels.team=1"], "/operator/podLabels/team'"),
    "unknown effect": (
        ["--set-json", 'operator.tolerations=[{"effect":"Never"}]'],
        "/operator/tolerations/0/effect'",
    ),
    "collector without a scheme": (["--set", "telemetry.otlp.endpoint=collector:4318"], "/telemetry/otlp/endpoint'"),
    "credentials in the endpoint": (
        ["--set", "telemetry.otlp.endpoint=https://me:secret@collector"],
        "/telemetry/otlp/endpoint'",
    ),
    "another collector by the back door": (
        ["--set", "telemetry.otlp.environment.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://elsewhere"],
        "/telemetry/otlp/environment': additional properties 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT' not allowed",
    ),
    "interval without a unit": (["--set-string", "metrics.serviceMonitor.interval=30"], "/metrics/serviceMonitor/in"),
    "ServiceMonitor without metrics": (["--set", "metrics.serviceMonitor.enabled=true"], "Set metrics.enabled=true"),
    "subject without a kind": (
        ["--set", "agents.subjects[0].name=bob"],
        "/agents/subjects/0': missing property 'kind'",
    ),
    "ServiceAccount without a namespace": (
        ["--set-json", 'agents.subjects=[{"kind":"ServiceAccount","name":"bob"}]'],
        "/agents/subjects/0': missing property 'namespace'",
    ),
    "User with a namespace": (
        ["--set-json", 'viewers.subjects=[{"kind":"User","name":"bob","namespace":"box"}]'],
        "/viewers/subjects/0",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(arguments: list[str], message: str) -> None:
    done = template(*arguments)
    assert done.returncode != 0, "was accepted"
    assert message in done.stderr


def test_a_bare_install_says_what_is_missing() -> None:
    assert re.search(r"\bimage\.(repository|digest) is empty: set it to", template(values=None).stderr)


def test_every_object_of_the_schema_is_closed() -> None:
    """Free maps state the type of their values; the rest lists its properties and allows no other."""
    may_be_open = {"global", "nodeAffinity", "podAffinity", "podAntiAffinity"}

    def open_objects(name: str, node: object) -> list[str]:
        if not isinstance(node, dict):
            return []
        here = [name] if node.get("type") == "object" and "additionalProperties" not in node else []
        return here + [found for key, child in node.items() for found in open_objects(key, child)]

    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(open_objects("values", schema)) == may_be_open
