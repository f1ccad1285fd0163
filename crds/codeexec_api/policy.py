"""What a policy says of an execution: one pure function, for the operator, the client and the CLI alike."""

from collections.abc import Iterator
from dataclasses import dataclass

from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1 import CodeExecutionSpec, CodeSessionSpec, ExecutionPolicySpec, Limits, SandboxPoolSpec

Request = CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec


@dataclass(frozen=True)
class Violation:
    """One thing that the policy doesn't allow."""

    field: str
    found: str
    allowed: str

    def __str__(self) -> str:
        """One sentence that names the field, the value found and what is allowed."""
        return f"{self.field}: {self.found} is not allowed by the policy (allowed: {self.allowed})"


@dataclass(frozen=True)
class Verdict:
    """The policy's answer. `image` and `runtime_class_name` are what to run when there is no violation."""

    image: str
    runtime_class_name: str | None
    violations: tuple[Violation, ...]

    @property
    def allowed(self) -> bool:
        """True when nothing speaks against running the code."""
        return not self.violations

    @property
    def message(self) -> str:
        """Every violation in one text, and what to do."""
        if self.allowed:
            return "allowed by the policy"
        return (
            "; ".join(map(str, self.violations)) + ". Ask for less, or ask the platform owner to change the "
            "ExecutionPolicy 'default' of this namespace."
        )


def evaluate(spec: Request, policy: ExecutionPolicySpec) -> Verdict:
    """Hold a request against a policy. Pure and total: it lists every violation, and raises nothing."""
    image = spec.image or policy.images[0]
    runtime_class = spec.runtime_class_name or policy.runtime_class_name
    return Verdict(
        image=image,
        runtime_class_name=runtime_class,
        violations=(*_sandbox(spec, policy, image), *_particular(spec, policy)),
    )


def _particular(spec: Request, policy: ExecutionPolicySpec) -> Iterator[Violation]:
    """What is asked for besides the pod."""
    if isinstance(spec, CodeExecutionSpec):
        yield from _execution(spec, policy)
    elif isinstance(spec, CodeSessionSpec):
        yield from _session(spec, policy)


def _sandbox(spec: Request, policy: ExecutionPolicySpec, image: str) -> Iterator[Violation]:
    """What is asked of the pod."""
    if image not in policy.images:
        yield Violation("spec.image", image, ", ".join(policy.images))
    classes = [name for name in (policy.runtime_class_name, *policy.runtime_class_names) if name]
    if spec.runtime_class_name and spec.runtime_class_name not in classes:
        yield Violation("spec.runtimeClassName", spec.runtime_class_name, ", ".join(classes) or "none")
    yield from _above(("spec.limits.pids", spec.limits.pids, policy.max_limits.pids))
    if isinstance(spec.limits, Limits):
        yield from _above(("spec.limits.outputBytes", spec.limits.output_bytes, policy.max_limits.output_bytes))
    for name, asked, ceiling in (
        ("cpu", spec.limits.cpu, policy.max_limits.cpu),
        ("memory", spec.limits.memory, policy.max_limits.memory),
        ("ephemeralStorage", spec.limits.ephemeral_storage, policy.max_limits.ephemeral_storage),
    ):
        if parse_quantity(asked) > parse_quantity(ceiling):
            yield Violation(f"spec.limits.{name}", asked, f"at most {ceiling}")


def _execution(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> Iterator[Violation]:
    for index, block in enumerate(spec.blocks):
        if block.language not in policy.languages:
            yield Violation(f"spec.blocks[{index}].language", block.language, ", ".join(policy.languages))
    yield from _above(
        ("spec.blocks", len(spec.blocks), policy.max_blocks),
        ("spec.timeoutSeconds", spec.timeout_seconds, policy.max_timeout_seconds),
    )


def _session(spec: CodeSessionSpec, policy: ExecutionPolicySpec) -> Iterator[Violation]:
    yield from _above(
        ("spec.idleTimeoutSeconds", spec.idle_timeout_seconds, policy.max_session_idle_seconds),
        ("spec.maxLifetimeSeconds", spec.max_lifetime_seconds, policy.max_session_lifetime_seconds),
    )


def _above(*numbers: tuple[str, int, int]) -> Iterator[Violation]:
    for field, found, highest in numbers:
        if found > highest:
            yield Violation(field, str(found), f"at most {highest}")
