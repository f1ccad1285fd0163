"""Whether an image may be named in a pod: if the cluster's owner has given public keys, one of them must have signed.

Signatures come with the policy, so nothing is fetched, and the answer is the same each time.
"""

from collections.abc import Sequence

from codeexec_api import Event, ExecutionPolicySpec, Reason
from codeexec_api.image_signatures import ImageKey, examine
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.outcome import Ending


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
