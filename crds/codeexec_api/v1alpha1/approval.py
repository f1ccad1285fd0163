"""ExecutionApproval: a decision about one execution, and what a status records of it."""

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from codeexec_api.names import APPROVAL_KIND, APPROVAL_PLURAL
from codeexec_api.v1alpha1.base import Model, Object, Status
from codeexec_api.v1alpha1.bounds import MAX_GRANTS, MAX_UNUSED_APPROVALS
from codeexec_api.v1alpha1.fields import ObjectName, OptionalName, UserName, Word, rule, rules


class Grant(Model):
    """Grant is one requested value that the policy allows only with approval."""

    field: str = Field(
        min_length=1, max_length=128, description="field is the path of the field, such as spec.limits.memory."
    )
    value: str = Field(min_length=1, max_length=1024, description="value is the requested value, such as 4Gi.")

    def __str__(self) -> str:
        """Field and value, separated by an equals sign."""
        return f"{self.field}={self.value}"


class UnusedApproval(Status):
    """UnusedApproval is an ExecutionApproval that names this execution but has no effect."""

    name: ObjectName = Field(description="name is the name of the ExecutionApproval.")
    approver: str = Field("", max_length=512, description="approver is the user who created the ExecutionApproval.")
    reason: Word = Field(
        description="reason is why the ExecutionApproval has no effect: OtherExecution, SelfApproval, OtherGrants, "
        "Revoked or Expired.",
    )
    message: str = Field(
        "", max_length=1024, description="message is why the ExecutionApproval has no effect in words, for people."
    )


class ApprovalStatus(Status):
    """ApprovalStatus records what needs approval, and the decision."""

    grants: tuple[Grant, ...] = Field(
        (),
        max_length=MAX_GRANTS,
        description="grants lists the requested values that the policy allows only with approval.",
    )
    requested_at: datetime | None = Field(
        None, description="requestedAt is the time at which the execution began to wait for approval."
    )
    wait_until: datetime | None = Field(
        None,
        description="waitUntil is the time until which the execution waits for a decision. After that time, it "
        "ends as Expired.",
    )
    code_secret: OptionalName = Field(
        "",
        description="codeSecret is the name of a Secret from which approvers can read the code until the decision. It "
        "is the first Secret of payloadRef, or one that the operator creates from sealedPayload. Empty if there is no "
        "code or the Secret could not be created.",
    )
    name: OptionalName = Field("", description="name is the name of the ExecutionApproval with the decision.")
    uid: str = Field("", max_length=64, description="uid is the metadata.uid of the ExecutionApproval.")
    decision: str = Field(
        "",
        max_length=16,
        pattern=r"^(Approve|Deny)?$",
        description="decision is Approve or Deny. Empty if there is no decision.",
    )
    approver: str = Field(
        "", max_length=512, description="approver is the user who decided, as the API server authenticated them."
    )
    reason: str = Field("", max_length=1024, description="reason is the approver's reason for the decision.")
    decided_at: datetime | None = Field(
        None, description="decidedAt is the time at which the ExecutionApproval was created."
    )
    expires_at: datetime | None = Field(
        None,
        description="expiresAt is the time at which the approval expires. If the code has not started by then, the "
        "execution ends as Expired.",
    )
    unused: tuple[UnusedApproval, ...] = Field(
        (),
        max_length=MAX_UNUSED_APPROVALS,
        description="unused lists ExecutionApprovals that name this execution but have no effect: the newest "
        f"{MAX_UNUSED_APPROVALS}.",
    )


class ExecutionRef(Model):
    """ExecutionRef identifies the execution that the decision is about."""

    name: ObjectName = Field(description="name is the name of a CodeExecution in the same namespace.")
    uid: str = Field(
        min_length=1,
        max_length=64,
        description="uid is the metadata.uid of the CodeExecution. The decision has no effect on a later CodeExecution "
        "with the same name.",
    )
    requested_by: UserName = Field(description="requestedBy is the spec.requestedBy of the CodeExecution.")


class ExecutionApprovalSpec(Model):
    """ExecutionApprovalSpec is a decision about one execution. It is immutable, except that it can be revoked."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.approver != self.executionRef.requestedBy",
                "spec.approver: nobody approves their own request; another user has to approve",
                field=".approver",
            ),
            rule(
                "self.decision != 'Approve' || (has(self.grants) && has(self.expiresAt))",
                "to approve, set grants to those in the execution's status.approval, and set expiresAt",
                field=".grants",
            ),
            rule(
                "has(self.revokedBy) == self.revoked",
                "set spec.revokedBy if spec.revoked is true, and only then",
                field=".revokedBy",
            ),
            rule(
                "!has(oldSelf.revokedBy) || self.revokedBy == oldSelf.revokedBy",
                "spec.revokedBy is immutable: it can be set once, together with spec.revoked",
                field=".revokedBy",
            ),
        )
    )

    execution_ref: ExecutionRef = Field(
        description="executionRef identifies the execution that the decision is about.",
    )
    decision: Literal["Approve", "Deny"] = Field(
        description="decision is Approve to let the code run, or Deny to end the execution as Denied.",
    )
    grants: tuple[Grant, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_GRANTS,
        description="grants lists what is approved. It must equal the grants in the execution's status.approval, else "
        "the approval has no effect. Required to approve.",
    )
    approver: UserName = Field(
        description="approver is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy refuses any other name. The approver must not be the user who requested the execution.",
    )
    reason: str = Field(
        "",
        max_length=1024,
        description="reason is the reason for the decision, for the audit record and the agent. Optional.",
    )
    expires_at: datetime | None = Field(
        None,
        description="expiresAt is the time at which the approval expires. If the code has not started by then, it does "
        "not run. Required to approve.",
    )
    revoked: bool = Field(
        False,
        description="revoked withdraws the decision when set to true. It can't be taken back. It does not stop code "
        "that has started: cancel the execution instead. Defaults to false.",
        json_schema_extra=rules(rule("!oldSelf || self", "spec.revoked can't be taken back: decide anew instead")),
    )
    revoked_by: UserName | None = Field(
        None,
        description="revokedBy is the name of the user who sets revoked, as `kubectl auth whoami` prints it. The "
        "chart's admission policy refuses any other name. Required if revoked is true.",
    )


class ExecutionApproval(Object):
    """ExecutionApproval is a decision about one execution that needs approval."""

    kind = APPROVAL_KIND
    plural = APPROVAL_PLURAL

    spec: ExecutionApprovalSpec = Field(
        description="spec is the decision. It is immutable, except that it can be revoked."
    )
