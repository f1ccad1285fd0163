"""Kubernetes quantities."""

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.quantities import parse_quantity, read_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        ("0", "0"),
        ("0.5", "0.5"),
        ("500m", "0.5"),
        ("1.5Gi", "1610612736"),
        ("1k", "1000"),
        ("2M", "2000000"),
        ("3G", "3000000000"),
        ("1T", "1000000000000"),
        ("1Ki", "1024"),
        ("256Mi", "268435456"),
        ("1Ti", "1099511627776"),
    ],
)
def test_value_in_base_units(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 Gi",
        " 1",
        "1\n",
        "-1",
        "+1",
        ".5",
        "1.",
        "1e3",
        "1E3",
        "5n",
        "1Pi",
        "1gi",
        "1MB",
        "Mi",
        "\uff11",
        "1" * 16,
    ],
)
def test_everything_else_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity such as") as refused:
        parse_quantity(text)
    assert repr(text) in str(refused.value)


@given(number=st.integers(0, 10**9))
def test_suffixes_scale(number: int) -> None:
    assert parse_quantity(f"{number}Ki") == 1024 * parse_quantity(f"{number}")
    assert 1000 * parse_quantity(f"{number}m") == parse_quantity(f"{number}")
    assert parse_quantity(f"{number}Gi") == 1024 * parse_quantity(f"{number}Mi")


@given(text=st.text(max_size=12))
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_quantity(text) >= 0


@pytest.mark.parametrize(
    ("text", "value"),
    [("16389548Ki", "16782897152"), ("1e3", "1000"), ("98n", "0.000000098"), ("1Ei", str(2**60)), (".5", "0.5")],
)
def test_whatever_the_api_server_writes_is_read(text: str, value: str) -> None:
    assert read_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Mi", "1 Mi", "1Q", "0x10"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        read_quantity(text)
