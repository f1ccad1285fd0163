"""An image that is not named by digest is refused, with the digest that the local Docker knows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_client.images import check_image

ONE, OTHER = "1" * 64, "2" * 64
LOCAL = "unix:///var/run/docker.sock"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a program called docker onto PATH, alone; returns the file in which it writes down what it was asked."""

    def install(*digests: str, endpoint: str = LOCAL, then: str = "") -> Path:
        asked = tmp_path / "asked"
        program = tmp_path / "docker"
        program.write_text(
            "#!/bin/sh\n"
            f'echo "$@" >>{asked}\n'
            f"case $1 in context) echo {endpoint} ;; image) {then}\n echo '{' '.join(digests)}' ;; esac\n"
        )
        program.chmod(0o755)
        return asked

    monkeypatch.setenv("PATH", str(tmp_path))
    return install


def refusal(reference: str) -> str:
    with pytest.raises(ValueError, match="must be named by digest") as caught:
        check_image(reference)
    return str(caught.value)


@pytest.mark.parametrize(
    "reference",
    [
        f"registry.example/sandbox@sha256:{ONE}",
        f"localhost:5001/codeexec/sandbox@sha256:{ONE}",
        f"sandbox:1.0@sha256:{ONE}",
    ],
)
def test_a_reference_by_digest_passes_and_docker_is_not_asked(reference: str, docker: Callable[..., Path]) -> None:
    asked = docker(f"sandbox@sha256:{OTHER}")
    check_image(reference)
    assert not asked.exists()


@pytest.mark.parametrize(
    "reference", ["box.example/sandbox:1.0", "box.example/sandbox", "localhost:5001/box:1", "localhost:5001/box"]
)
def test_the_digest_is_named_that_docker_has_for_the_same_repository(
    reference: str, docker: Callable[..., Path]
) -> None:
    same = {"box.example": f"box.example/sandbox@sha256:{ONE}", "localhost:5001": f"localhost:5001/box@sha256:{ONE}"}
    wanted = same[reference.partition("/")[0]]
    docker(f"another.example/sandbox@sha256:{OTHER}", wanted)
    assert refusal(reference) == (
        f"image is '{reference}', but must be named by digest (NAME@sha256:…), because a tag can move; use {wanted}"
    )


def test_the_digest_of_another_repository_is_better_than_none(docker: Callable[..., Path]) -> None:
    docker(f"registry.example/sandbox@sha256:{ONE}")
    assert refusal("built-here:latest").endswith(f"use registry.example/sandbox@sha256:{ONE}")


def test_docker_is_asked_what_it_has_and_nothing_is_pulled(docker: Callable[..., Path]) -> None:
    asked = docker()
    refusal("--pull=always")
    assert asked.read_text().splitlines() == [
        "context inspect --format {{.Endpoints.docker.Host}}",
        "image inspect --format {{range .RepoDigests}}{{println .}}{{end}} -- --pull=always",
    ]


def test_a_daemon_on_another_machine_is_not_asked(docker: Callable[..., Path]) -> None:
    asked = docker(f"sandbox@sha256:{ONE}", endpoint="ssh://builder.example")
    assert "; use " not in refusal("sandbox:1.0")
    assert asked.read_text().startswith("context inspect")
    assert "image" not in asked.read_text()


NO_HELP = "`docker push` and `docker pull` print its digest"


def test_without_docker_the_refusal_says_where_digests_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert refusal("sandbox:1.0").endswith(NO_HELP)


@pytest.mark.parametrize(
    "trouble",
    {
        "no such image": "exit 1",
        "an image without digests": "exit",
        "an answer that is no text": r"printf '\377'; exit",
        "it hangs": "exec /bin/sleep 60",
    }.items(),
    ids=lambda case: case[0],
)
def test_a_docker_that_can_not_help_does_no_harm(
    trouble: tuple[str, str], docker: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_client.images._DOCKER_SECONDS", 2)
    asked = docker(f"sandbox@sha256:{ONE}", then=trouble[1])
    assert refusal("sandbox:1.0").endswith(NO_HELP)
    assert "image inspect" in asked.read_text()


def test_what_can_not_be_an_argument_is_refused_like_the_rest(docker: Callable[..., Path]) -> None:
    docker(f"sandbox@sha256:{ONE}")
    assert refusal("sandbox\x00").endswith(NO_HELP)


@given(st.text(max_size=60))
def test_whatever_is_given_is_refused_or_by_digest(reference: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        assert refusal(reference).startswith(f"image is {reference!r}, but")
