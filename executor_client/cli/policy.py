"""`codeexec policy explain`: what the policy says of a request, before it is made."""

import sys
from pathlib import Path
from typing import Any, Final

import click
import pydantic
import yaml

from codeexec_api import (
    CodeExecutionSpec,
    CodeSessionSpec,
    Decision,
    ExecutionPolicySpec,
    SandboxPoolSpec,
    Verdict,
    evaluate,
)
from codeexec_api.names import EXECUTION_KIND, POLICY_KIND, POOL_KIND, SESSION_KIND
from executor_client.cli.common import Cluster, cluster_options, explain, output_option
from executor_client.cli.display import echo_fields, echo_json, echo_table

_SPECS: Final[dict[str, type[CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec]]] = {
    EXECUTION_KIND: CodeExecutionSpec,
    SESSION_KIND: CodeSessionSpec,
    POOL_KIND: SandboxPoolSpec,
}
_EXIT_CODES: Final = {Decision.ALLOWED: 0, Decision.NEEDS_APPROVAL: 3, Decision.DENIED: 4}


@click.group(short_help="Ask what the policy allows.")
def policy() -> None:
    """What the policy of a namespace allows, and what a human would have to approve."""


@policy.command("explain", short_help="Say whether a request is allowed, and why.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="ExecutionPolicy, or its spec, instead of that of the namespace.",
)
@output_option
@cluster_options
def explain_command(cluster: Cluster, as_json: bool, file: Path, policy_file: Path | None) -> None:
    """Hold the CodeExecution, CodeSession or SandboxPool in FILE (YAML) against the policy.

    Exits with 0 if it is allowed, 3 if a human has to approve it, and 4 if it is denied.
    """
    spec = _request(file)
    if policy_file:
        governing = _policy(_load(policy_file), str(policy_file))
    else:
        raw = cluster.run(lambda client: client.get_policy())
        if raw is None:
            raise click.ClickException(
                f"namespace {cluster.ref.namespace!r} has no ExecutionPolicy of its own, so the cluster's default "
                "counts, which is in the ConfigMap of the operator: give its policy.yaml by --policy"
            )
        governing = raw
    verdict = evaluate(spec, governing)
    if as_json:
        echo_json(_as_dict(verdict))
    else:
        _show(spec, verdict)
    sys.exit(_EXIT_CODES[verdict.decision])


def _request(file: Path) -> CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec:
    documents = [one for one in _documents(file) if isinstance(one, dict) and one.get("kind") in _SPECS]
    if len(documents) != 1:
        raise click.ClickException(f"{file} must hold one {', '.join(_SPECS)}, but holds {len(documents)}")
    try:
        return _SPECS[documents[0]["kind"]].model_validate(documents[0].get("spec"))
    except pydantic.ValidationError as error:
        raise click.ClickException(f"{file}: {explain(error)}") from error


def _policy(raw: Any, name: str) -> ExecutionPolicySpec:
    spec = raw.get("spec") if isinstance(raw, dict) and raw.get("kind") == POLICY_KIND else raw
    try:
        return ExecutionPolicySpec.model_validate(spec)
    except pydantic.ValidationError as error:
        raise click.ClickException(f"{name}: {explain(error)}") from error


def _load(file: Path) -> Any:
    documents = _documents(file)
    return documents[0] if documents else None


def _documents(file: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"can't read {file}: {error}") from error


def _show(spec: CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec, verdict: Verdict) -> None:
    asked = spec if isinstance(spec, CodeExecutionSpec) else None
    echo_fields(
        {
            "Verdict": verdict.decision.value,
            "Image": verdict.image,
            "Runtime class": verdict.runtime_class_name or "",
            "Egress": ", ".join(map(str, (asked and asked.egress) or ())),
            "Mounts": ", ".join(map(str, (asked and asked.mounts) or ())),
        }
    )
    rows = [("never", one.field, one.found, one.allowed) for one in verdict.violations]
    rows += [("with approval", one.field, one.found, one.allowed) for one in verdict.beyond]
    if rows:
        click.echo()
        echo_table(("IS ALLOWED", "FIELD", "FOUND", "THE POLICY ALLOWS"), rows)


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "decision": verdict.decision.value,
        "image": verdict.image,
        "runtimeClassName": verdict.runtime_class_name,
        "violations": [vars(one) for one in verdict.violations],
        "needsApproval": [vars(one) for one in verdict.beyond],
        "grants": [grant.dump() for grant in verdict.grants],
        "message": verdict.message,
    }
