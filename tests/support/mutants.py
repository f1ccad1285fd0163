"""`make mutants`: the pure modules are changed in small ways, one at a time, and the unit tests have to notice.

mutmut makes the mutants and runs, for each, the tests that reach it. It wants the packages side by side, so they are
copied to `.codeexec/mutants` first; what ran before is kept there, and after a change of the code only functions that
changed and mutants that survived are tried again. `--fresh` tries all of them. Words choose modules:
`mutants.py transcript policy`. JOBS is how many mutants are tried at a time.

Two kinds of mutants are left out: other words in strings, and arguments that are None or missing, which mypy refuses.
"""

import os
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mutmut.__main__ import _run
from mutmut.mutation import mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

ROOT = Path(__file__).parents[2]
STAGE = ROOT / ".codeexec" / "mutants"
COPIED = ("crds/codeexec_api", "operator/codeexec_operator", "executor_client", "tests", "pyproject.toml")
LEFT_OUT = (mutators.operator_string, mutators.operator_arg_removal)
LEAST = 0.95
JOBS = int(os.environ.get("JOBS", "2"))
KILLED = frozenset({"killed", "timeout", "suspicious", "segfault", "caught by type check"})


@dataclass(frozen=True, order=True)
class Survivor:
    """A change that no test notices, told by what it changes: it stays the same when other lines move."""

    file: str
    was: str
    becomes: str


def stage() -> None:
    """Copies what changed, and nothing else: mutmut looks at times of files."""
    STAGE.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, target = ROOT / name, STAGE / Path(name).name
        if source.is_file():
            shutil.copy2(source, target)
            continue
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)
        for path in [path for path in target.rglob("*.py") if not (source / path.relative_to(target)).exists()]:
            path.unlink()
    shutil.rmtree(STAGE / "mutants" / "tests", ignore_errors=True)  # mutmut adds to it, but takes nothing away
    (STAGE / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)  # which tests reach what may have changed


def forget_survivors() -> None:
    """They are tried again: a test that was added changes no function."""
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for mutant, code in data.exit_code_by_key.items():
            if status_by_exit_code[code] not in KILLED:
                data.exit_code_by_key[mutant] = None
        if data.exit_code_by_key:
            data.save()


def change_of(mutant: str, path: Path) -> Survivor:
    """Which line became which."""
    lines = get_diff_for_mutant(mutant, path=path).splitlines()
    was = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---")]
    becomes = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
    return Survivor(str(path), " ".join(was), " ".join(becomes))


def known_survivors() -> dict[Survivor, str]:
    """From tests/mutants.toml, with the reason of each."""
    listed = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())
    return {Survivor(one["file"], one["was"], one["becomes"]): one["why"] for one in listed.get("survivor", [])}


def main(words: list[str]) -> int:
    """Runs mutmut, prints the score of each module, and fails for a survivor that is not listed."""
    if "--fresh" in words:
        shutil.rmtree(STAGE, ignore_errors=True)
    modules = [word for word in words if not word.startswith("-")]
    stage()
    os.chdir(STAGE)
    sys.dont_write_bytecode = True
    mutators.mutation_operators[:] = [one for one in mutators.mutation_operators if one[1] not in LEFT_OUT]
    if "--report" not in words:
        forget_survivors()
        _run([f"*.{module}.*" for module in modules], max_children=JOBS)

    known, found = known_survivors(), set()
    total: Counter[str] = Counter()
    print(f"\n{'module':<44} mutants  killed")
    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        if not data.exit_code_by_key or (modules and path.stem not in modules):
            continue
        statuses = {mutant: status_by_exit_code[code] for mutant, code in data.exit_code_by_key.items()}
        killed = sum(status in KILLED for status in statuses.values())
        total.update(mutants=len(statuses), killed=killed)
        print(f"{path!s:<44} {len(statuses):>7}  {killed / len(statuses):>6.1%}")
        for mutant, status in statuses.items():
            if status not in KILLED:
                found.add(survivor := change_of(mutant, path))
                if survivor not in known:
                    print(f"    new, {status}: {mutant}\n        {survivor.was}\n        {survivor.becomes}")
    if not total["mutants"]:
        print("no mutant was made")
        return 1
    score = total["killed"] / total["mutants"]
    print(
        f"{'all of them':<44} {total['mutants']:>7}  {score:>6.1%}; survivors with a reason: {len(found & set(known))}"
    )
    for gone in sorted(set(known) - found) if not modules else []:
        print(f"listed in tests/mutants.toml, but it does not survive (any more): {gone}")
    return int(bool(found - set(known)) or score < LEAST or (not modules and bool(set(known) - found)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
