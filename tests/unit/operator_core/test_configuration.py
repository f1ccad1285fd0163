"""The operator's ConfigMap: all of it is taken, or nothing, and what is wrong is named."""

import pytest
from factories import IMAGE

from codeexec_operator.core.configuration import ConfigurationError, parse_configuration

DATA = {"namespaces.yaml": '["one", "two"]', "policy.yaml": f"images: ['{IMAGE}']\nmaxTimeoutSeconds: 30\n"}


def test_namespaces_policy_and_pool_are_read() -> None:
    found = parse_configuration({**DATA, "pool.yaml": "replicas: 3"})
    assert found.namespaces == {"one", "two"}
    assert (found.policy.images, found.policy.max_timeout_seconds) == ((IMAGE,), 30)
    assert found.pool is not None
    assert found.pool.replicas == 3


def test_there_may_be_no_pool() -> None:
    assert parse_configuration(DATA).pool is None


@pytest.mark.parametrize("key", ["namespaces.yaml", "policy.yaml"])
def test_a_part_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the key {key} is missing"):
        parse_configuration({name: text for name, text in DATA.items() if name != key})


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("namespaces.yaml", "[]", "is \\[\\]: it has to be a list of at least one namespace"),
        ("namespaces.yaml", "one", "is 'one': it has to be a list"),
        ("namespaces.yaml", "[One]", "contains 'One': a namespace has 1 to 63 lower-case letters"),
        ("namespaces.yaml", "[one-]", "contains 'one-'"),
        ("namespaces.yaml", "[3]", "contains 3"),
        ("namespaces.yaml", "[one", "is not YAML"),
        ("namespaces.yaml", "a: 2024-99-99", "is not YAML"),
        ("policy.yaml", "", "the value"),
        ("policy.yaml", "images: []", "images"),
        ("policy.yaml", f"images: ['{IMAGE}']\nmaxBlocks: -1", "maxBlocks"),
        ("policy.yaml", f"images: ['{IMAGE}']\nnewRule: true", "newRule"),
        ("policy.yaml", "images: {2026-01-01: x}", "images: found"),
        ("policy.yaml", "images: &a [*a]", "images"),
        ("pool.yaml", "replicas: -1", "replicas"),
        ("pool.yaml", "{", "is not YAML"),
        ("image-keys.pem", "", "the public keys of images can't be read"),
        ("image-keys.pem", "no key", "the public keys of images can't be read"),
    ],
)
def test_a_part_that_is_wrong_is_named_with_what_is_wrong(key: str, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}.*{words}"):
        parse_configuration({**DATA, key: text})
