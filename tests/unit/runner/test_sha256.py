"""Digests are those of hashlib, however much there is and in whatever pieces it comes."""

import hashlib
import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
LITTLE = 64 * 1024


@pytest.fixture(scope="module")
def sha256() -> Any:
    spec = importlib.util.spec_from_file_location("sandbox_sha256", SOURCES / "sha256.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, LITTLE - 1, LITTLE, LITTLE + 1, 5 * LITTLE])
@pytest.mark.parametrize("piece", [700, 4096, LITTLE, 4 * LITTLE])
def test_a_digest_is_the_same_as_that_of_hashlib(sha256: Any, size: int, piece: int) -> None:
    content = random.Random(size).randbytes(size)
    digest = sha256.Sha256()
    for start in range(0, size, piece):
        digest.update(content[start : start + piece])
        if start in (0, piece, LITTLE):  # asking for it changes nothing
            assert digest.hexdigest() == hashlib.sha256(content[: start + piece]).hexdigest()
    assert digest.hexdigest() == hashlib.sha256(content).hexdigest()
    assert sha256.LITTLE == LITTLE


@pytest.mark.parametrize(("size", "loaded"), [(LITTLE, False), (LITTLE + 1, True)])
def test_openssl_is_loaded_for_much_only(size: int, loaded: bool) -> None:
    """Python's own digest takes several times as long for much."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from sha256 import Sha256; one = Sha256(); "
        f"one.update(bytes({size})); one.hexdigest(); print('_hashlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == f"{loaded}\n"


@pytest.mark.parametrize("without", [["_sha256"], ["_sha256", "_sha2"]])
def test_other_versions_of_python_have_it_elsewhere(without: list[str]) -> None:
    """Python 3.12 has `_sha2`; a Python that was built without its own digests has OpenSSL's."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({without!r})); sys.path.insert(0, {str(SOURCES)!r}); "
        "from sha256 import Sha256; one = Sha256(); one.update(b'x'); print(one.hexdigest())"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == f"{hashlib.sha256(b'x').hexdigest()}\n"
