"""What a policy says of a request: one pure function, for the operator, the client and the CLI alike."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from codeexec_api.code_rules import Reading, demanded, find
from codeexec_api.names import NODE_RUNTIME, POLICY_NAME
from codeexec_api.permits import allows, covers, fault_of
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.approval import Grant
from codeexec_api.v1alpha1.bounds import MAX_OUTPUT_BYTES
from codeexec_api.v1alpha1.code_rules import CodeAction
from codeexec_api.v1alpha1.execution import CodeExecutionSpec
from codeexec_api.v1alpha1.limits import Limits
from codeexec_api.v1alpha1.policy import AgentRule, Approvable, ExecutionPolicySpec, SessionSleep
from codeexec_api.v1alpha1.pool import SandboxPoolSpec
from codeexec_api.v1alpha1.session import CodeSession, CodeSessionSpec

Request = CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec
_STORE: Final = (
    f"; more than {MAX_OUTPUT_BYTES} needs an output store (Helm value outputStore.url) and a policy whose "
    "maxLimits.outputBytes allows that"
)
_SLEEP: Final = (
    "sleeping needs an output store (Helm value outputStore.url) and a policy with sessionSleep.minAfterSeconds"
)
_OVERRIDES: Final = frozenset(AgentRule.model_fields) & frozenset(ExecutionPolicySpec.model_fields)


class Decision(StrEnum):
    """What a policy says of a request as a whole."""

    ALLOWED = "Allowed"
    NEEDS_APPROVAL = "NeedsApproval"
    DENIED = "Denied"


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
    """The policy's answer. `image` and `runtime_class_name` are what to run if it is to run."""

    image: str
    runtime_class_name: str | None
    """None: the node's default runtime, which requests and policies call `runc`."""
    violations: tuple[Violation, ...] = ()
    """What is never allowed, not even with approval."""
    beyond: tuple[Violation, ...] = ()
    """What is allowed with approval only."""
    policy_source: str = ""
    """Where the policy is kept."""

    @property
    def decision(self) -> Decision:
        """What this comes to."""
        if self.violations:
            return Decision.DENIED
        return Decision.NEEDS_APPROVAL if self.beyond else Decision.ALLOWED

    @property
    def allowed(self) -> bool:
        """True when nothing speaks against running the code, and nobody has to be asked."""
        return self.decision is Decision.ALLOWED

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What a human would have to approve: exactly what is asked for beyond the policy."""
        return tuple(Grant(field=one.field, value=one.found) for one in self.beyond)

    @property
    def message(self) -> str:
        """Everything that is not allowed in one text, and what to do."""
        if self.decision is Decision.ALLOWED:
            return "allowed by the policy"
        listed = "; ".join(map(str, (*self.violations, *self.beyond)))
        if self.decision is Decision.NEEDS_APPROVAL:
            return listed
        return f"{listed}. Ask for less, or ask the platform owner to change {self.policy_source or 'the policy'}"


def namespace_policy(namespace: str) -> str:
    """Where the policy of a namespace is kept that has its own, for messages."""
    return f"the ExecutionPolicy {POLICY_NAME!r} in namespace {namespace!r}"


def cluster_policy(config_map: tuple[str, str] | None) -> str:
    """Where the policy of all other namespaces is kept, for messages: namespace and name of the ConfigMap, if known."""
    place = f", ConfigMap {config_map[1]!r} in namespace {config_map[0]!r}" if config_map else ""
    return f"the cluster's default policy (Helm value policy{place})"


def evaluate(
    spec: Request, policy: ExecutionPolicySpec, reading: Reading | None = None, *, source: str = ""
) -> Verdict:
    """Compare a request with a policy. Pure and total: the verdict lists all that is not allowed. Raises nothing.

    Args:
        spec: what is asked for.
        policy: the policy that governs its namespace.
        reading: what is known of its code. If there are rules for code, code that was not read counts as unreadable.
        source: where the policy is kept, for the message of a denial; see `namespace_policy` and `cluster_policy`.
    """
    policy = policy_for(spec, policy)
    image = spec.image or policy.images[0]
    runtime_class = spec.runtime_class_name or policy.runtime_class_name
    found = (*_sandbox(spec, policy, image), *_particular(spec, policy, reading))
    return Verdict(
        image=image,
        runtime_class_name=None if runtime_class == NODE_RUNTIME else runtime_class,
        violations=tuple(one for one, approvable in found if not approvable),
        beyond=tuple(one for one, approvable in found if approvable),
        policy_source=source,
    )


def inheriting(policy: ExecutionPolicySpec, default: ExecutionPolicySpec) -> ExecutionPolicySpec:
    """The policy of a namespace as it counts in a cluster with this default policy.

    Requests that are unset are those of the default. A policy that says nothing of the isolation, or of the export of
    records, doesn't weaken it. An image that is signed needs no second signature.
    """
    export = policy.records.require_export or default.records.require_export
    return policy.model_copy(
        update={
            "requests": default.requests.model_copy(update=policy.requests.model_dump(exclude_none=True)),
            "image_signatures": (*policy.image_signatures, *default.image_signatures),
            "runtime_class_name": policy.runtime_class_name or default.runtime_class_name,
            "require_user_namespaces": policy.require_user_namespaces or default.require_user_namespaces,
            "records": policy.records.model_copy(update={"require_export": export}),
        }
    )


def without_store(policy: ExecutionPolicySpec) -> ExecutionPolicySpec:
    """The policy where no output store is: sessions have no place to sleep in."""
    return policy.model_copy(update={"session_sleep": SessionSleep()})


def capped(policy: ExecutionPolicySpec, output_bytes: int) -> ExecutionPolicySpec:
    """The policy where there is place for this much of each output stream."""
    most = min(policy.max_limits.output_bytes, output_bytes)
    return policy.model_copy(update={"max_limits": policy.max_limits.model_copy(update={"output_bytes": most})})


def policy_for(spec: Request, policy: ExecutionPolicySpec) -> ExecutionPolicySpec:
    """The policy as it counts for this request: with the first of its agent rules that fits, if one does."""
    policy = _with_rule(spec, policy)
    if isinstance(spec, CodeExecutionSpec):
        return policy
    return policy.model_copy(update={"with_approval": Approvable()})  # nothing but executions waits for a decision


def session_refusal(spec: CodeExecutionSpec, session: CodeSession, policy: ExecutionPolicySpec) -> str:
    """Why an execution may not run in a session that somebody else's rule allows; empty if it may.

    An execution gets the image and the RuntimeClass of its session. The policy judged these by the rule for the
    requester of the session. A session under the same rule is not judged again, so a changed policy ends no session.
    """
    rule = policy_for(spec, policy)
    if _of_a_session(rule) == _of_a_session(policy_for(session.spec, policy)):
        return ""
    status, classes = session.status, (rule.runtime_class_name or NODE_RUNTIME, *rule.runtime_class_names)
    found = [
        *_among("status.image", status.image, rule.images, ()),
        *_among("status.runtimeClassName", status.runtime_class_name or NODE_RUNTIME, classes, ()),
    ]
    if session.spec.stateful:  # its kernel keeps the limit that it was started with
        found += _above("spec.limits.pids", session.spec.limits.pids, rule.max_limits.pids, None)
    if not found:
        return ""
    listed = "; ".join(str(violation) for violation, _ in found)
    return (
        f"spec.sessionRef: session {session.metadata.name!r} is somebody else's: {listed}. Start a session of your own"
    )


def _of_a_session(policy: ExecutionPolicySpec) -> tuple[object, ...]:
    return policy.images, policy.runtime_class_name, policy.runtime_class_names, policy.max_limits.pids


def without_code_rules(policy: ExecutionPolicySpec) -> ExecutionPolicySpec:
    """The policy for a request whose code nobody has, so that nothing is said of it."""
    rules = tuple(one.model_copy(update={"code_rules": None}) for one in policy.agent_rules)
    return policy.model_copy(update={"code_rules": (), "agent_rules": rules})


def _with_rule(spec: Request, policy: ExecutionPolicySpec) -> ExecutionPolicySpec:
    fitting = next((one for one in sorted(policy.agent_rules, key=_is_a_claim) if _fits(one, spec)), None)
    if fitting is None:
        return policy
    changes: dict[str, Any] = {name: value for name in _OVERRIDES if (value := getattr(fitting, name)) is not None}
    if fitting.max_limits:
        limits = {name: value for name, value in fitting.max_limits if value is not None}
        changes["max_limits"] = policy.max_limits.model_copy(update=limits)
    return policy.model_copy(update=changes)


def _is_a_claim(rule: AgentRule) -> bool:
    """Who claims to be another agent must not get out of what is proven."""
    return rule.requested_by is None


def _fits(rule: AgentRule, spec: Request) -> bool:
    if isinstance(spec, SandboxPoolSpec):
        return False  # it is the platform owner's, and no agent's
    agent = rule.agent is None or rule.agent == spec.source.agent
    return agent and (rule.requested_by is None or rule.requested_by == spec.requested_by)


_Found = tuple[Violation, bool]
"""What is not allowed, and whether a human may approve it."""


def _particular(spec: Request, policy: ExecutionPolicySpec, reading: Reading | None) -> Iterator[_Found]:
    """What is asked for besides the pod."""
    if isinstance(spec, CodeExecutionSpec):
        yield from _execution(spec, policy)
        yield from _code(spec, policy, reading)
    elif isinstance(spec, CodeSessionSpec):
        yield from _session(spec, policy)


def _sandbox(spec: Request, policy: ExecutionPolicySpec, image: str) -> Iterator[_Found]:
    """What is asked of the pod."""
    more, highest = policy.with_approval, policy.max_limits
    yield from _among("spec.image", image, policy.images, more.images)
    if spec.runtime_class_name:
        classes = [name for name in (policy.runtime_class_name, *policy.runtime_class_names) if name]
        yield from _among("spec.runtimeClassName", spec.runtime_class_name, classes, more.runtime_class_names)
    yield from _above("spec.limits.pids", spec.limits.pids, highest.pids, more.max_limits.pids)
    if isinstance(spec.limits, Limits) and (found := spec.limits.output_bytes) > highest.output_bytes:
        store = _STORE if found > MAX_OUTPUT_BYTES >= highest.output_bytes else ""
        yield Violation("spec.limits.outputBytes", str(found), f"at most {highest.output_bytes}{store}"), False
    for name, field in (("cpu", "cpu"), ("memory", "memory"), ("ephemeralStorage", "ephemeral_storage")):
        asked, ceiling, approvable = (getattr(one, field) for one in (spec.limits, highest, more.max_limits))
        if parse_quantity(asked) > parse_quantity(ceiling):
            within = approvable is not None and parse_quantity(asked) <= parse_quantity(approvable)
            yield Violation(f"spec.limits.{name}", asked, _at_most(ceiling, approvable)), within


def _execution(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> Iterator[_Found]:
    more = policy.with_approval
    for index, block in enumerate(spec.blocks):
        yield from _among(f"spec.blocks[{index}].language", block.language, policy.languages, more.languages)
    yield from _above("spec.blocks", len(spec.blocks), policy.max_blocks, more.max_blocks)
    if spec.blocks:  # else it limits nothing
        highest, approvable = policy.max_timeout_seconds, more.max_timeout_seconds
        yield from _above("spec.timeoutSeconds", spec.timeout_seconds, highest, approvable)
    yield from _access(spec, policy)


def _code(spec: CodeExecutionSpec, policy: ExecutionPolicySpec, reading: Reading | None) -> Iterator[_Found]:
    """What rules for code have against it."""
    for one in find(spec, policy.code_rules, reading):
        if one.action is not CodeAction.NOTE:
            violation = Violation(one.places[0], str(one), demanded(one, policy.code_rules))
            yield violation, one.action is CodeAction.NEED_APPROVAL


def _access(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> Iterator[_Found]:
    """What is asked for beyond a sandbox that reaches nothing and holds nothing but its workspace."""
    more = policy.with_approval
    for index, permit in enumerate(spec.egress or ()):
        field = f"spec.egress[{index}]"
        if fault := fault_of(permit):
            yield Violation(field, str(permit), f"none: {fault}"), False
        elif not any(covers(rule, permit) for rule in policy.egress):
            approvable = any(covers(rule, permit) for rule in more.egress)
            yield Violation(field, str(permit), _listed(policy.egress, more.egress)), approvable
    for index, mount in enumerate(spec.mounts or ()):
        if not any(allows(rule, mount) for rule in policy.mounts):
            sources, further = ([one.source for one in rules] for rules in (policy.mounts, more.mounts))
            yield Violation(f"spec.mounts[{index}]", str(mount), _listed(sources, further)), mount.source in further


def _session(spec: CodeSessionSpec, policy: ExecutionPolicySpec) -> Iterator[_Found]:
    yield from _above("spec.idleTimeoutSeconds", spec.idle_timeout_seconds, policy.max_session_idle_seconds, None)
    yield from _above("spec.maxLifetimeSeconds", spec.max_lifetime_seconds, policy.max_session_lifetime_seconds, None)
    asked, lowest = spec.sleep_after_seconds, policy.session_sleep.min_after_seconds
    if asked is not None and (lowest is None or asked < lowest):
        allowed = f"none; {_SLEEP}" if lowest is None else f"at least {lowest}"
        yield Violation("spec.sleepAfterSeconds", str(asked), allowed), False


def _among(field: str, found: str, allowed: Collection[str], approvable: Collection[str]) -> Iterator[_Found]:
    if found not in allowed:
        yield Violation(field, found, _listed(allowed, approvable)), found in approvable


def _listed(allowed: Collection[object], approvable: Collection[object]) -> str:
    text = ", ".join(map(str, allowed)) or "none"
    return f"{text}; with approval: {', '.join(map(str, approvable))}" if approvable else text


def _above(field: str, found: int, highest: int, approvable: int | None) -> Iterator[_Found]:
    if found > highest:
        within = approvable is not None and found <= approvable
        yield Violation(field, str(found), _at_most(highest, approvable)), within


def _at_most(highest: object, approvable: object) -> str:
    text = f"at most {highest}"
    return text if approvable is None else f"{text}; with approval: at most {approvable}"
