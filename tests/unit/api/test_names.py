"""Names that are derived from others."""

import re

import pytest
from factories import UID

from codeexec_api.names import (
    MAX_EXECUTION_NAME,
    ORDER_KEY,
    artifact_key,
    block_key,
    file_key,
    output_name,
    payload_name,
    pod_name,
)
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_BLOCKS, MAX_FILES, MAX_OUTPUT_PARTS, MAX_PAYLOAD_PARTS

KEY = r"[-._a-zA-Z0-9]{1,253}"
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


def test_a_pod_is_named_after_its_execution_and_its_uid() -> None:
    assert pod_name("run-1", UID) == "run-1-0f8fad5b"


def test_the_longest_execution_name_gives_a_valid_pod_name() -> None:
    name = pod_name("x" * MAX_EXECUTION_NAME, UID)
    assert len(name) == 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_a_recreated_execution_gets_another_pod() -> None:
    assert pod_name("run-1", UID) != pod_name("run-1", UID[::-1])


def test_the_first_part_of_a_payload_has_the_name_that_the_spec_names() -> None:
    assert [payload_name("run-1", part) for part in range(3)] == ["run-1", "run-1-1", "run-1-2"]


def test_outputs_are_named_after_execution_uid_and_part() -> None:
    assert output_name("run-1", UID, (0, 17)) == "run-1-0f8fad5b-0-17"
    assert output_name("run-1", UID[::-1], (0, 1)) != output_name("run-1", UID, (0, 1))


@pytest.mark.parametrize(
    "names",
    [
        [payload_name("x" * MAX_EXECUTION_NAME, part) for part in range(MAX_PAYLOAD_PARTS)],
        [output_name("x" * MAX_EXECUTION_NAME, UID, (part, 10**9)) for part in range(MAX_OUTPUT_PARTS)],
    ],
    ids=["payload", "output"],
)
def test_names_of_parts_are_distinct_and_valid(names: list[str]) -> None:
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(OBJECT_NAME, name) for name in names)


@pytest.mark.parametrize(
    "keys",
    [
        [*map(block_key, range(MAX_BLOCKS)), *map(file_key, range(MAX_FILES))],
        ["stdout", "stderr", ORDER_KEY, *map(artifact_key, range(MAX_ARTIFACTS))],
    ],
    ids=["payload", "output"],
)
def test_keys_are_distinct_and_valid(keys: list[str]) -> None:
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(KEY, key) for key in keys)
