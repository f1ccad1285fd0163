"""Whether an image may be named in a pod: if the cluster's owner has given public keys, one of them must have signed.

Signatures come with the policy, so nothing is fetched, and the answer is the same each time.
"""

from collections.abc import Sequence
from typing import Protocol

from codeexec_api import Event, ExecutionPolicySpec, Reason
from codeexec_api.image_signatures import ImageKey, examine
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.isolation import unobtainable
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.outcome import Ending


class Seen(Protocol):
    """What is observed of an execution, a session or a pool, as far as it decides about images."""

    @property
    def policy(self) -> ExecutionPolicySpec | PolicyProblem | None:
        """That of the namespace."""

    @property
    def policy_source(self) -> str:
        """Where the policy is kept, for messages."""

    @property
    def cluster_view(self) -> ClusterView:
        """With the keys that there are."""


def refused_image(seen: Seen, image: str, runtime_class_name: str | None) -> Ending | None:
    """The refusal, if no pod of this RuntimeClass would have what the policy requires, or the image is distrusted."""
    return unobtainable(seen.policy, seen.cluster_view, runtime_class_name) or distrusted(seen, image)


def distrusted(seen: Seen, image: str) -> Ending | None:
    """The refusal, if the image has to be signed and is not."""
    return unverified(image, seen.policy, seen.cluster_view.image_keys, seen.policy_source)


def unverified(
    image: str, policy: ExecutionPolicySpec | PolicyProblem | None, keys: Sequence[ImageKey], source: str = ""
) -> Ending | None:
    """The refusal, if the owner of the cluster has keys and none of them signed this image; without keys, none."""
    if not keys or not isinstance(policy, ExecutionPolicySpec):
        return None
    wanted = image.rpartition("@sha256:")[2]
    found = [examine(bundle, tuple(keys)) for bundle in policy.image_signatures]
    about = [sig for sig in found if sig.digest == wanted]
    if any(not sig.problem for sig in about):
        return None
    problems = dict.fromkeys(sig.problem for sig in about or found if sig.problem and sig.digest in ("", wanted))
    why = "; ".join(("imageSignatures has no signature of this digest",) * (not about) + tuple(problems))
    message = (
        f"image {image} is not verified: {why}. Trusted keys: {', '.join(map(str, keys))} (chart value "
        "sandbox.imageVerification.publicKeys). Sign the image with one of them, and add the signature to "
        f"imageSignatures of {source or 'the policy'} (docs/images.md). Nothing was run"
    )
    return Ending(Event.REFUSED, Reason.IMAGE_NOT_VERIFIED, message)
