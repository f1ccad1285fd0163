"""Sandbox images are named by digest: refuses another reference, and says which digest the local Docker has for it."""

import re
import shutil
import subprocess
from typing import Final

from codeexec_api.v1alpha1 import IMAGE_PATTERN

_DOCKER_SECONDS: Final = 5
"""How long each of the two questions to Docker may take."""
_LOCAL_ENDPOINTS: Final = ("unix://", "npipe://")


def check_image(reference: str) -> None:
    """Refuse an image that is not named by digest.

    Does no I/O for a reference by digest. For another one it asks the Docker daemon of this machine, if there is one,
    which digest it has; nothing is pulled, and a daemon on another machine is not asked.

    Args:
        reference: such as `registry.example/sandbox@sha256:…`.

    Raises:
        ValueError: the reference is not by digest; the message names the one to use where Docker knows it.
    """
    if re.fullmatch(IMAGE_PATTERN, reference):
        return
    known = _local_digest(reference)
    remedy = f"use {known}" if known else "`docker push` and `docker pull` print its digest"
    raise ValueError(
        f"image is {reference!r}, but must be named by digest (NAME@sha256:…), because a tag can move; {remedy}"
    )


def _local_digest(reference: str) -> str | None:
    """The reference by digest that the local Docker has for this image; of its own repository, if there is one."""
    if not _ask_docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}").startswith(_LOCAL_ENDPOINTS):
        return None
    answer = _ask_docker("image", "inspect", "--format", "{{range .RepoDigests}}{{println .}}{{end}}", "--", reference)
    digests = [one for one in answer.split() if re.fullmatch(IMAGE_PATTERN, one)]
    repository = re.sub(r":[^:/]*$", "", reference)
    digests.sort(key=lambda one: one.partition("@")[0] != repository)
    return digests[0] if digests else None


def _ask_docker(*arguments: str) -> str:
    """What the command prints; nothing if it fails, hangs or is not there: Docker is a help here, not a need."""
    docker = shutil.which("docker")
    if docker is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and "--" stands before what the caller gave
            [docker, *arguments], capture_output=True, text=True, check=False, timeout=_DOCKER_SECONDS
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: a null byte in the reference
        return ""
    return done.stdout if done.returncode == 0 else ""
