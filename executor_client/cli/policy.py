"""`codeexec policy explain`: check a request against the policy before you submit it."""

import base64
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import pydantic
import yaml

from codeexec_api import (
    CodeAction,
    CodeExecutionSpec,
    CodeFinding,
    CodeSessionSpec,
    Decision,
    ExecutionPolicySpec,
    SandboxPoolSpec,
    Verdict,
    evaluate,
)
from codeexec_api.code_rules import find, parts, unread
from codeexec_api.digests import sha256_hex
from codeexec_api.names import EXECUTION_KIND, PAYLOAD_SECRET_TYPE, POLICY_KIND, POOL_KIND, SESSION_KIND
from codeexec_api.policy import policy_for, without_code_rules
from executor_client.cli.common import Cluster, cluster_options, explain, output_option
from executor_client.cli.display import echo_fields, echo_json, echo_table
from executor_client.model.code_reading import read_code

_Spec = CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec
_SPECS: Final[dict[str, type[_Spec]]] = {
    EXECUTION_KIND: CodeExecutionSpec,
    SESSION_KIND: CodeSessionSpec,
    POOL_KIND: SandboxPoolSpec,
}
_EXIT_CODES: Final = {Decision.ALLOWED: 0, Decision.NEEDS_APPROVAL: 3, Decision.DENIED: 4}


@click.group(short_help="Check what the policy allows.")
def policy() -> None:
    """Check what the policy of a namespace allows, and what needs approval."""


@policy.command("explain", short_help="Check whether a request is allowed, and why.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an ExecutionPolicy, or its spec, to use instead of the policy of the namespace.",
)
@click.option(
    "--code",
    "code_files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="File with the exact content of a block or file that the execution announces, for code rules. Not needed for "
    "content in a payload Secret in FILE. Can be repeated.",
)
@output_option
@cluster_options
def explain_command(
    cluster: Cluster, as_json: bool, file: Path, policy_file: Path | None, code_files: tuple[Path, ...]
) -> None:
    """Check the CodeExecution, CodeSession or SandboxPool in FILE (YAML) against the policy.

    Exits with 0 if it is allowed, 3 if it needs approval, and 4 if it is denied.
    """
    spec = _request(file)
    if policy_file:
        governing = _policy(next(iter(_documents(policy_file)), None), str(policy_file))
    else:
        raw = cluster.run(lambda client: client.get_policy())
        if raw is None:
            raise click.ClickException(
                f"namespace {cluster.ref.namespace!r} has no ExecutionPolicy, so the default policy applies: "
                "policy.yaml in the ConfigMap of the operator; save it to a file, and pass the file with --policy"
            )
        governing = raw
    asked = _hold(spec, governing, _contents(file, spec, code_files))
    verdict = asked.verdict
    if as_json:
        echo_json(_as_dict(asked))
    else:
        _show(spec, governing, asked)
    sys.exit(_EXIT_CODES[verdict.decision])


def _request(file: Path) -> _Spec:
    documents = [one for one in _documents(file) if isinstance(one, dict) and one.get("kind") in _SPECS]
    if len(documents) != 1:
        *kinds, last = _SPECS
        raise click.ClickException(
            f"{file} must contain exactly one {', '.join(kinds)} or {last}, but contains {len(documents)}"
        )
    try:
        return _SPECS[documents[0]["kind"]].model_validate(documents[0].get("spec"))
    except pydantic.ValidationError as error:
        raise click.ClickException(f"{file}: {explain(error)}") from error


@dataclass(frozen=True)
class _Answer:
    verdict: Verdict
    findings: tuple[CodeFinding, ...] = ()
    missing: tuple[str, ...] = ()
    """Blocks and files that code rules apply to, but whose content is not known."""


def _hold(spec: _Spec, governing: ExecutionPolicySpec, contents: Mapping[str, bytes]) -> _Answer:
    """Evaluate the request. If any code is missing, code rules are not applied at all."""
    rules = policy_for(spec, governing).code_rules
    if not isinstance(spec, CodeExecutionSpec) or not unread(spec, rules, None):
        return _Answer(evaluate(spec, governing))
    if missing := tuple(place for place, sha256 in parts(spec) if sha256 not in contents):
        return _Answer(evaluate(spec, without_code_rules(governing)), missing=missing)
    files = spec.files or ()
    blocks, others = ([contents.get(one.sha256, b"") for one in some] for some in (spec.blocks, files))
    reading = read_code(spec, governing, blocks, others)
    return _Answer(evaluate(spec, governing, reading), find(spec, rules, reading))


def _contents(file: Path, spec: _Spec, code_files: tuple[Path, ...]) -> dict[str, bytes]:
    """The known code by digest: from payload Secrets in the same file, and from the files of --code."""
    secrets = [one for one in _documents(file) if isinstance(one, dict) and one.get("type") == PAYLOAD_SECRET_TYPE]
    known: set[str] = set()
    if isinstance(spec, CodeExecutionSpec):
        known = {one.sha256 for one in spec.blocks} | {one.sha256 for one in spec.files or ()}
    found = {sha256_hex(one): one for secret in secrets for one in _values(file, secret)}
    for path in code_files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise click.ClickException(f"can't read {path}: {error}") from error
        if sha256_hex(content) not in known:
            raise click.ClickException(
                f"--code {path}: it has sha256 {sha256_hex(content)}, and no block or file in {file} announces that; "
                "pass a file with exactly the bytes to run"
            )
        found[sha256_hex(content)] = content
    return found


def _values(file: Path, secret: Mapping[str, Any]) -> list[bytes]:
    try:
        data = [base64.b64decode(one, validate=True) for one in (secret.get("data") or {}).values()]
        return data + [one.encode() for one in (secret.get("stringData") or {}).values()]
    except (ValueError, TypeError, AttributeError) as error:
        raise click.ClickException(f"{file}: a payload Secret whose data is not base64: {error}") from error


def _policy(raw: Any, name: str) -> ExecutionPolicySpec:
    spec = raw.get("spec") if isinstance(raw, dict) and raw.get("kind") == POLICY_KIND else raw
    try:
        return ExecutionPolicySpec.model_validate(spec)
    except pydantic.ValidationError as error:
        raise click.ClickException(f"{name}: {explain(error)}") from error


def _documents(file: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"can't read {file}: {error}") from error


def _show(spec: _Spec, governing: ExecutionPolicySpec, answer: _Answer) -> None:
    verdict = answer.verdict
    named = spec.runtime_class_name or governing.runtime_class_name
    asked = spec if isinstance(spec, CodeExecutionSpec) else None
    echo_fields(
        {
            "Verdict": verdict.decision.value,
            "Image": verdict.image,
            "Runtime class": named or "from the operator's default policy",
            "Egress": ", ".join(map(str, (asked and asked.egress) or ())),
            "Mounts": ", ".join(map(str, (asked and asked.mounts) or ())),
            "Code": f"codeRules were not checked: pass the code of {', '.join(answer.missing)} with --code"
            if answer.missing
            else "",
        }
    )
    rows = [("never", one.field, one.found, one.allowed) for one in verdict.violations]
    rows += [("with approval", one.field, one.found, one.allowed) for one in verdict.beyond]
    noted = [one for one in answer.findings if one.action is CodeAction.NOTE]
    rows += [("and noted", one.places[0], str(one), "") for one in noted]
    if rows:
        click.echo()
        echo_table(("IS ALLOWED", "FIELD", "FOUND", "THE POLICY ALLOWS"), rows)


def _as_dict(answer: _Answer) -> dict[str, Any]:
    verdict = answer.verdict
    return {
        "decision": verdict.decision.value,
        "image": verdict.image,
        "runtimeClassName": verdict.runtime_class_name,
        "violations": [vars(one) for one in verdict.violations],
        "needsApproval": [vars(one) for one in verdict.beyond],
        "grants": [grant.dump() for grant in verdict.grants],
        "codeFindings": None if answer.missing else [one.dump() for one in answer.findings],
        "message": verdict.message,
    }
