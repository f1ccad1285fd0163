"""Spellings of languages."""

import pytest

from codeexec_api.languages import DEFAULT_LANGUAGES, LANGUAGES, canonical, unknown_language


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("python", "python"),
        ("Python", "python"),
        ("PYTHON", "python"),
        ("py", "python"),
        ("python3", "python"),
        (" python ", "python"),
        ("python\r", "python"),
        ("bash", "bash"),
        ("Bash", "bash"),
        ("sh", "sh"),
        ("shell", "sh"),
        ("SHELL", "sh"),
        ("javascript", "javascript"),
        ("JavaScript", "javascript"),
        ("js", "javascript"),
        ("node", "javascript"),
        ("pwsh", "pwsh"),
        ("PowerShell", "pwsh"),
        ("ps1", "pwsh"),
    ],
)
def test_known_spellings(spelling: str, name: str) -> None:
    assert canonical(spelling) == name


@pytest.mark.parametrize("spelling", ["", " ", "java", "typescript", "python2", "python3.11", "pythonw; rm", "zsh"])
def test_everything_else_is_unknown(spelling: str) -> None:
    assert canonical(spelling) is None


def test_the_message_names_the_spelling_and_what_is_supported() -> None:
    assert unknown_language("Ruby") == (
        "unknown language Ruby; supported languages: python, bash, sh. A sandbox image with node or pwsh also runs "
        "javascript or pwsh: see docs/images.md"
    )


def test_the_default_image_runs_the_first_of_the_list() -> None:
    assert tuple(LANGUAGES)[: len(DEFAULT_LANGUAGES)] == DEFAULT_LANGUAGES


def test_each_language_can_be_stored_and_started() -> None:
    for name, language in LANGUAGES.items():
        assert language.name == name
        assert language.extension.startswith(".")
        assert language.command
