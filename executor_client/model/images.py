"""Sandbox images are named by digest: refuses another reference. Does no I/O."""

import re

from codeexec_api.v1alpha1.bounds import IMAGE_PATTERN


def check_image(reference: str) -> str:
    """An image that is named by digest, such as `registry.example/sandbox@sha256:…`.

    Raises:
        ValueError: the reference is not by digest; the message says where to find it.
    """
    if re.fullmatch(IMAGE_PATTERN, reference):
        return reference
    raise ValueError(
        f"image is {reference!r}, but must be named by digest (NAME@sha256:…), because a tag can move; "
        "`docker image inspect --format '{{index .RepoDigests 0}}' IMAGE` prints it for an image that was pulled"
    )
