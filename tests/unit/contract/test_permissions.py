"""docs/security/permissions.md lists the rights that the chart grants; `api/test_rbac.py` asks an API server."""

import re
from collections.abc import Iterable, Mapping

import pytest
from chart import rights
from cluster_tools import ROOT

PAGE = (ROOT / "docs" / "security" / "permissions.md").read_text()
SHARDS = re.compile(r"`(codeexec-operator)-1` to `codeexec-operator-15`")
Cell = tuple[str, ...]


def tables(heading: str) -> list[list[dict[str, str]]]:
    """The tables below a heading, each as rows by the names of their columns."""
    _, _, text = PAGE.partition(f"\n## {heading}\n")
    found: list[list[dict[str, str]]] = []
    names: list[str] = []
    for line in text.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            names = []
        elif not names:
            names = cells
            found.append([])
        elif set(line) - set("|-"):
            found[-1].append(dict(zip(names, cells, strict=True)))
    return found


def named(cell: str) -> Iterable[tuple[str, ...]]:
    """Group and resource, and the name of an object if the cell has one: `leases.coordination.k8s.io` `some-name`."""
    cell = SHARDS.sub(lambda match: " ".join(f"`{match[1]}-{one}`" for one in range(1, 16)), cell)
    resource, *objects = re.findall(r"`([^`]+)`", cell)
    plural, _, group = resource.partition(".")
    return [(group, plural, *one) for one in ([(name,) for name in objects] or [()])]


def listed(rows: Iterable[Mapping[str, str]], column: str = "verbs") -> set[Cell]:
    return {(*of, verb) for row in rows for of in named(row["resource"]) for verb in re.findall(r"\w+", row[column])}


def granted(*of: Mapping[tuple[str, ...], set[str]]) -> set[Cell]:
    return {(*what, verb) for table in of for what, verbs in table.items() for verb in verbs}


def test_what_the_operator_may_do_in_a_sandbox_namespace() -> None:
    always, deleting = tables("Operator, in each sandbox namespace")
    usual = granted(rights.OPERATOR, rights.OPERATOR_BY_NAME)
    assert listed(always) == usual
    assert listed(deleting) == (granted(rights.OPERATOR_THAT_DELETES, rights.OPERATOR_THAT_DELETES_BY_NAME) - usual)


def test_what_the_operator_may_do_elsewhere() -> None:
    [home] = tables("Operator, in its own namespace")
    assert listed(home) == granted(rights.OPERATOR_AT_HOME, rights.OPERATOR_AT_HOME_BY_NAME)
    [elsewhere] = tables("Operator, elsewhere")
    in_default = [row for row in elsewhere if row["where"] != "cluster"]
    assert listed(in_default) == granted(rights.OPERATOR_IN_DEFAULT)
    assert listed(row for row in elsewhere if row not in in_default) == granted(rights.OPERATOR_EVERYWHERE)


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_what_users_may_do(role: str) -> None:
    [rows] = tables("Users, in each sandbox namespace")
    assert listed(rows, role) == granted(getattr(rights, role.upper()))


def test_what_the_jobs_may_do() -> None:
    [rows] = tables("Jobs")
    at_home = [row for row in rows if row["where"] == "operator's namespace"]
    assert listed(at_home) == granted(rights.CHECKPOINTS_AT_HOME)
    assert all(row["job"] == "checkpoints, export" for row in at_home)
    exports = [row for row in rows if row not in at_home]
    assert listed(exports) == granted(rights.EXPORT, rights.EXPORT_BY_NAME)
    assert {row["job"] for row in exports} == {"export"}


def test_the_page_has_no_table_that_is_not_compared() -> None:
    assert len(re.findall(r"^\|-", PAGE, re.MULTILINE)) == 6
    assert (ROOT / "docs" / "README.md").read_text().count("security/permissions.md") == 1
