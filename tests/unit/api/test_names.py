"""Names that are derived from others."""

import re

from factories import UID

from codeexec_api.names import MAX_EXECUTION_NAME, block_key, file_key, pod_name


def test_a_pod_is_named_after_its_execution_and_its_uid() -> None:
    assert pod_name("run-1", UID) == "run-1-0f8fad5b"


def test_the_longest_execution_name_gives_a_valid_pod_name() -> None:
    name = pod_name("x" * MAX_EXECUTION_NAME, UID)
    assert len(name) == 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_a_recreated_execution_gets_another_pod() -> None:
    assert pod_name("run-1", UID) != pod_name("run-1", UID[::-1])


def test_keys_of_a_payload_are_distinct_and_valid() -> None:
    keys = [block_key(index) for index in range(64)] + [file_key(index) for index in range(16)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in keys)
