"""The command line, as far as it goes without a cluster."""

import pytest

from executor_client.cli import visible


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("plain\n\ttext é😀\r\n", "plain\n\ttext é😀\n"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J\x7f\x00\b", "\\x9b2J\\x7f\\x00\\x08"),
        ("over\rwritten", "over\\x0dwritten"),
    ],
)
def test_output_can_not_control_a_terminal(output: str, shown: str) -> None:
    assert visible(output) == shown
