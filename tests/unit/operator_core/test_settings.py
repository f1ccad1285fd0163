"""The operator's settings, from its environment."""

from pathlib import Path

import pytest
from factories import IMAGE
from pydantic import ValidationError

from codeexec_operator.settings import Settings


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(f"images: ['{IMAGE}']\nmaxTimeoutSeconds: 30\n")
    monkeypatch.setenv("CODEEXEC_NAMESPACES", "one")
    monkeypatch.setenv("CODEEXEC_POLICY_FILE", str(path))
    monkeypatch.setenv("CODEEXEC_SEALING_SECRET", "codeexec-system/codeexec-sealing")
    monkeypatch.setenv("CODEEXEC_CANARY_SERVICE", "codeexec-system/codeexec-canary")
    monkeypatch.setenv("CODEEXEC_LEADER_LEASE", "codeexec-system/codeexec-operator")
    return path


@pytest.mark.parametrize(
    ("text", "namespaces"), [("one", ("one",)), ("one,two", ("one", "two")), (" one , two,", ("one", "two"))]
)
def test_namespaces_are_separated_by_commas(
    text: str, namespaces: tuple[str, ...], policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEEXEC_NAMESPACES", text)
    assert Settings().namespaces == namespaces


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_operator_without_a_namespace_is_refused(
    text: str, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEEXEC_NAMESPACES", text)
    with pytest.raises(ValidationError, match="namespaces"):
        Settings()


@pytest.mark.parametrize(
    "name",
    [
        "CODEEXEC_NAMESPACES",
        "CODEEXEC_POLICY_FILE",
        "CODEEXEC_SEALING_SECRET",
        "CODEEXEC_CANARY_SERVICE",
        "CODEEXEC_LEADER_LEASE",
    ],
)
def test_what_is_missing_is_named(name: str, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ValidationError, match=name.removeprefix("CODEEXEC_").lower()):
        Settings()


def test_the_secret_for_keys_has_a_namespace_and_a_name(policy_file: Path) -> None:
    assert Settings().sealing_secret == ("codeexec-system", "codeexec-sealing")


@pytest.mark.parametrize("text", ["", "codeexec-sealing", "codeexec-system/codeexec-sealing/keys.json"])
def test_another_name_for_the_secret_is_refused(text: str, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEEXEC_SEALING_SECRET", text)
    with pytest.raises(ValidationError, match="sealing_secret"):
        Settings()


def test_service_and_lease_have_a_namespace_and_a_name(policy_file: Path) -> None:
    assert Settings().canary_service == ("codeexec-system", "codeexec-canary")
    assert Settings().leader_lease == ("codeexec-system", "codeexec-operator")


def test_ranges_that_no_permit_opens_are_networks(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEEXEC_NEVER_PERMIT", "203.0.113.4/32, 2001:db8::/64")
    assert [str(one) for one in Settings().never_permit] == ["203.0.113.4/32", "2001:db8::/64"]
    monkeypatch.setenv("CODEEXEC_NEVER_PERMIT", "203.0.113.4/8")
    with pytest.raises(ValidationError, match="never_permit"):
        Settings()


def test_where_the_policy_comes_from_may_be_unknown(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().policy_config_map is None
    monkeypatch.setenv("CODEEXEC_POLICY_CONFIG_MAP", "codeexec-system/codeexec-operator")
    assert Settings().policy_config_map == ("codeexec-system", "codeexec-operator")


def test_the_default_policy_is_read_from_the_file(policy_file: Path) -> None:
    policy = Settings().default_policy()
    assert (policy.images, policy.max_timeout_seconds) == ((IMAGE,), 30)


@pytest.mark.parametrize("text", ["", "[]", "images: []", "image: x"])
def test_a_wrong_policy_is_refused(text: str, policy_file: Path) -> None:
    policy_file.write_text(text)
    with pytest.raises(ValidationError):
        Settings().default_policy()


def test_a_policy_file_that_is_missing_is_named(policy_file: Path) -> None:
    policy_file.unlink()
    with pytest.raises(FileNotFoundError, match=r"policy\.yaml"):
        Settings().default_policy()
