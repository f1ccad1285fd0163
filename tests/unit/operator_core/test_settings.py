"""The operator's settings, from its environment."""

import pytest
from pydantic import ValidationError

from codeexec_operator.settings import Settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEEXEC_CONFIG_MAP", "codeexec-system/codeexec-operator")
    monkeypatch.setenv("CODEEXEC_SEALING_SECRET", "codeexec-system/codeexec-sealing")
    monkeypatch.setenv("CODEEXEC_CANARY_SERVICE", "codeexec-system/codeexec-canary")
    monkeypatch.setenv("CODEEXEC_LEADER_LEASE", "codeexec-system/codeexec-operator")


@pytest.mark.parametrize(
    "name",
    ["CODEEXEC_CONFIG_MAP", "CODEEXEC_SEALING_SECRET", "CODEEXEC_CANARY_SERVICE", "CODEEXEC_LEADER_LEASE"],
)
def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ValidationError, match=name.removeprefix("CODEEXEC_").lower()):
        Settings()


def test_what_is_named_has_a_namespace_and_a_name() -> None:
    assert Settings().canary_service == ("codeexec-system", "codeexec-canary")
    assert Settings().leader_lease == ("codeexec-system", "codeexec-operator")
    assert Settings().config_map == ("codeexec-system", "codeexec-operator")
    assert Settings().sealing_secret == ("codeexec-system", "codeexec-sealing")


@pytest.mark.parametrize("text", ["", "codeexec-sealing", "codeexec-system/codeexec-sealing/keys.json"])
def test_another_name_for_the_secret_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEEXEC_SEALING_SECRET", text)
    with pytest.raises(ValidationError, match="sealing_secret"):
        Settings()


def test_ranges_that_no_permit_opens_are_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEEXEC_NEVER_PERMIT", "203.0.113.4/32, 2001:db8::/64")
    assert [str(one) for one in Settings().never_permit] == ["203.0.113.4/32", "2001:db8::/64"]
    monkeypatch.setenv("CODEEXEC_NEVER_PERMIT", "203.0.113.4/8")
    with pytest.raises(ValidationError, match="never_permit"):
        Settings()


def test_a_store_for_output_is_a_url_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().output_store == ""
    monkeypatch.setenv("CODEEXEC_OUTPUT_STORE", "s3://bucket/codeexec/")
    assert Settings().output_store == "s3://bucket/codeexec"
    monkeypatch.setenv("CODEEXEC_OUTPUT_STORE", "s3://key:secret@bucket")
    with pytest.raises(ValidationError, match="output_store"):
        Settings()
