"""`make deploy` on a cluster of the user's: which arguments Helm gets."""

import os
import subprocess
from pathlib import Path

from cluster_tools import ROOT

DIGEST = "sha256:" + "a" * 64
NOTES = "WARNING: this is open.\nClose it.\n\ncodeexec is installed."


def deploy(folder: Path, **more: str) -> tuple[list[str], str]:
    """The arguments of Helm, and what `make deploy` printed; helm and kubectl are played."""
    programs = folder / "bin"
    programs.mkdir()
    played = {
        "helm": f"printf '%s\\n' \"$@\" >{folder}/arguments; printf '%s\\n' '{NOTES}'",
        "kubectl": "true",
    }
    for name, body in played.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(folder / "kubeconfig"),
        "OPERATOR_IMAGE": f"registry.example/operator@{DIGEST}",
        "SANDBOX_IMAGE": f"registry.example/sandbox@{DIGEST}",
        "HELM_ARGS": "--values mine.yaml",
        **more,
    }
    for inherited in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.pop(inherited, None)
    command = ["make", "--assume-old", ".venv/bin/.installed", f"STATE={folder}", "deploy"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "arguments").read_text().splitlines(), done.stdout


def test_helm_gets_the_images_and_what_the_user_adds(tmp_path) -> None:
    """Which runtime the release has is the chart's affair, and the user's."""
    arguments, printed = deploy(tmp_path)
    assert arguments[:4] == ["upgrade", "--install", "codeexec", "charts/codeexec"]
    assert not [one for one in arguments if "runtimeClass" in one]
    assert arguments[-2:] == ["--values", "mine.yaml"]
    assert "WARNING: this is open.\nClose it." in printed
    assert "codeexec is installed" not in printed


def test_helm_gets_the_keys_and_the_signature_of_images_that_are_signed(tmp_path) -> None:
    arguments, _ = deploy(tmp_path, IMAGE_KEYS="keys.pem", SANDBOX_SIGNATURE="sandbox.json")
    files = [arguments[index + 1] for index, one in enumerate(arguments) if one == "--set-file"]
    assert files == ["sandbox.imageVerification.publicKeys=keys.pem", "sandbox.image.signature=sandbox.json"]


def test_images_that_are_not_signed_are_deployed_without_keys(tmp_path) -> None:
    assert "--set-file" not in deploy(tmp_path)[0]
