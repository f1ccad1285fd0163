"""Rules for code in a policy: what is looked at, what is found, and what comes of it."""

import functools
import json
from typing import Any

import pytest
from factories import CODE, a_policy, a_raw_block, a_raw_file, a_spec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from codeexec_api import CodeAction, CodeExecutionSpec, CodeFinding, Decision, ExecutionPolicySpec, evaluate
from codeexec_api.code_rules import UNREADABLE, Inquiry, Reading, find, parts, unread
from codeexec_api.imports import Unreadable, imported
from codeexec_api.policy import policy_for, without_code_rules
from codeexec_api.v1alpha1.bounds import MAX_BLOCKS, MAX_CODE_GRANTS, MAX_FILES, MAX_IMPORTS

RANK = {Decision.ALLOWED: 0, Decision.NEEDS_APPROVAL: 1, Decision.DENIED: 2}
DECISIONS = {"Note": Decision.ALLOWED, "NeedApproval": Decision.NEEDS_APPROVAL, "Deny": Decision.DENIED}
IMPORTS_OS, BROKEN = b"import os\n", b"!ls\n"


def rules(**actions: str) -> list[dict[str, Any]]:
    """Such as Deny="os ctypes"."""
    return [{"action": action, "imports": modules.split()} for action, modules in actions.items()]


def govern(*, more: Any = None, **actions: str) -> ExecutionPolicySpec:
    return a_policy(maxBlocks=MAX_BLOCKS, codeRules=rules(**actions), **(more or {}))


def asking(*codes: bytes, files: dict[str, bytes] | None = None, **block: Any) -> CodeExecutionSpec:
    listed = [a_raw_file(path, content) for path, content in (files or {}).items()]
    return a_spec(blocks=[a_raw_block(code, **block) for code in codes], **({"files": listed} if listed else {}))


def answer(inquiry: Inquiry) -> bytes:
    """What the child process would say."""
    header, *sources = inquiry.message()
    listed, sizes = (line.split() for line in header.decode().split("\n")[:2])
    assert sizes == [str(len(one)) for one in sources]

    def line(source: bytes) -> str:
        try:
            hits = imported(source, listed)
        except Unreadable:
            return "null"
        return json.dumps([index for index, one in enumerate(listed) if one in hits])

    return "".join(f"{line(source)}\n" for source in sources).encode()


def read(policy: ExecutionPolicySpec, *codes: bytes, files: tuple[bytes, ...] = (), spec: CodeExecutionSpec) -> Reading:
    inquiry = Inquiry(spec, codes, files, policy_for(spec, policy).code_rules)
    return inquiry.reading(answer(inquiry))


def decide(policy: ExecutionPolicySpec, *codes: bytes) -> Decision:
    spec = asking(*codes)
    return evaluate(spec, policy, read(policy, *codes, spec=spec)).decision


def found(policy: ExecutionPolicySpec, *codes: bytes, files: dict[str, bytes] | None = None) -> list[tuple[str, ...]]:
    spec = asking(*codes, files=files)
    reading = read(policy, *codes, files=tuple((files or {}).values()), spec=spec)
    return [(one.found, one.action.value, *one.places) for one in find(spec, policy.code_rules, reading)]


# --- what is looked at ----------------------------------------------------------------------------------------------


def test_python_blocks_and_what_can_be_imported_from_the_workspace() -> None:
    spec = a_spec(
        blocks=[
            a_raw_block(),
            a_raw_block(language="bash"),
            a_raw_block(language="bash", filename="pkg/tool.py"),
            a_raw_block(language="python", filename="tool.txt"),
        ],
        files=[a_raw_file("data.csv"), a_raw_file("a/b.py"), a_raw_file("py")],
    )
    places = ["spec.blocks[0]", "spec.blocks[2]", "spec.blocks[3]", "spec.files[1]"]
    assert [place for place, _ in parts(spec)] == places


def test_other_languages_are_not_read() -> None:
    policy, spec = govern(Deny="os"), asking(IMPORTS_OS, language="bash")
    assert not unread(spec, policy.code_rules, None)
    assert evaluate(spec, policy).allowed


def test_without_rules_nothing_is_read() -> None:
    assert not unread(asking(IMPORTS_OS), (), None)
    assert evaluate(asking(IMPORTS_OS), a_policy()).allowed


def test_files_are_looked_at() -> None:
    files = {"a.py": IMPORTS_OS, "b.txt": IMPORTS_OS, "c.py": b"import os; import socket"}
    assert found(govern(Deny="os", Note="socket"), CODE, files=files) == [
        ("import os", "Deny", "spec.files[0]", "spec.files[2]"),
        ("import socket", "Note", "spec.files[2]"),
    ]


# --- what comes of it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h.pyc", "deep/h.so"])
def test_what_can_be_imported_and_is_no_text_can_not_be_read(name: str) -> None:
    assert found(govern(Deny="os"), b"import h", files={name: b"\xcb\r\r\n\x00\x00"}) == [
        (UNREADABLE, "Deny", "spec.files[0]")
    ]


@pytest.mark.parametrize("action", DECISIONS)
@pytest.mark.parametrize("code", [IMPORTS_OS, BROKEN], ids=["an import", "unreadable"])
def test_each_action(action: str, code: bytes) -> None:
    assert decide(govern(**{action: "os ctypes"}), code) is DECISIONS[action]
    assert decide(govern(**{action: "os ctypes"}), CODE) is Decision.ALLOWED, "control"


def test_the_strictest_action_counts() -> None:
    assert decide(govern(Note="os", NeedApproval="os", Deny="os"), IMPORTS_OS) is Decision.DENIED
    assert decide(govern(Note="os", NeedApproval="os", Deny="socket"), IMPORTS_OS) is Decision.NEEDS_APPROVAL
    assert decide(govern(Deny="os", Note="os.path"), b"import os.path") is Decision.DENIED
    assert decide(govern(Note="os", Deny="os.path"), b"import os.path") is Decision.DENIED
    assert decide(govern(Note="os", Deny="socket"), BROKEN) is Decision.DENIED, "it could be anything"


def test_findings_are_in_order_and_name_what_rules_name() -> None:
    code = b"from os.path import join as secret_word; import socket, ctypes, json"
    assert found(govern(Note="socket ctypes", Deny="os"), code, BROKEN) == [
        (UNREADABLE, "Deny", "spec.blocks[1]"),
        ("import os", "Deny", "spec.blocks[0]"),
        ("import ctypes", "Note", "spec.blocks[0]"),
        ("import socket", "Note", "spec.blocks[0]"),
    ]


def test_a_refusal_names_module_and_block_and_what_is_allowed() -> None:
    policy = govern(Deny="os ctypes")
    spec = asking(CODE, IMPORTS_OS)
    verdict = evaluate(spec, policy, read(policy, CODE, IMPORTS_OS, spec=spec))
    assert verdict.message.startswith(
        "spec.blocks[1]: import os is not allowed by the policy (allowed: code that imports none of ctypes, os). Ask"
    )
    spec = asking(BROKEN)
    message = evaluate(spec, policy, read(policy, BROKEN, spec=spec)).message
    assert (
        "spec.blocks[0]: unreadable Python is not allowed by the policy (allowed: valid Python without IPython"
        in message
    )
    assert "without IPython commands" in message


def test_a_grant_names_the_module_where_it_is_first_and_in_how_many_more() -> None:
    policy = govern(NeedApproval="os socket")
    codes = (CODE, IMPORTS_OS, BROKEN, b"import os, socket", IMPORTS_OS)
    spec = asking(*codes)
    verdict = evaluate(spec, policy, read(policy, *codes, spec=spec))
    assert list(map(str, verdict.grants)) == [
        "spec.blocks[2]=unreadable Python",
        "spec.blocks[1]=import os (and in 2 more)",
        "spec.blocks[3]=import socket",
    ]
    assert "with approval: this code as well" in verdict.message


def test_long_lists_are_cut_in_messages() -> None:
    policy = govern(Deny=" ".join(["os", *(f"module{number}" for number in range(20))]))
    spec = asking(IMPORTS_OS)
    message = evaluate(spec, policy, read(policy, IMPORTS_OS, spec=spec)).message
    assert "module15 and 13 more)" in message


def test_as_many_grants_as_code_can_need_and_no_place_is_forgotten() -> None:
    names = [f"m{number}." * 10 + "x" for number in range(MAX_IMPORTS)]
    code = b"import " + ",".join(names).encode()
    policy = govern(NeedApproval=" ".join(names))
    files = {f"{number}.py": code for number in range(MAX_FILES - 1)} | {"z.py": BROKEN}
    spec = asking(*[code] * MAX_BLOCKS, files=files)
    reading = read(policy, *[code] * MAX_BLOCKS, files=tuple(files.values()), spec=spec)
    verdict = evaluate(spec, policy, reading)
    assert len(verdict.grants) == MAX_CODE_GRANTS
    assert {str(one).partition("(")[2] for one in verdict.grants} == {"", "and in 126 more)"}
    for one in find(spec, policy.code_rules, reading):
        assert CodeFinding.model_validate(one.dump()) == one


def test_rules_of_an_agent_replace_those_of_the_policy() -> None:
    agents = {"agentRules": [{"agent": "tester", "codeRules": []}]}
    assert decide(govern(Deny="os"), IMPORTS_OS) is Decision.DENIED
    assert decide(govern(Deny="os", more=agents), IMPORTS_OS) is Decision.ALLOWED
    agents = {"agentRules": [{"agent": "tester", "codeRules": rules(NeedApproval="os")}]}
    assert decide(govern(more=agents), IMPORTS_OS) is Decision.NEEDS_APPROVAL
    agents = {"agentRules": [{"agent": "tester", "maxBlocks": 64}]}
    assert decide(govern(Deny="os", more=agents), IMPORTS_OS) is Decision.DENIED
    both = govern(Deny="os", more={"agentRules": [{"agent": "tester", "codeRules": rules(Deny="socket")}]})
    assert evaluate(asking(IMPORTS_OS), without_code_rules(both)).allowed


@pytest.mark.parametrize(
    "wrong",
    [
        [{"action": "Deny", "imports": ["os"]}, {"action": "Deny", "imports": ["socket"]}],
        [{"action": "Deny", "imports": []}],
        [{"action": "Warn", "imports": ["os"]}],
        [{"action": "Deny"}],
        [{"imports": ["os"]}],
        *([{"action": "Deny", "imports": [name]}] for name in ("", "os.", ".os", "os path", "o*", "ös", "a" * 65)),
        [{"action": "Deny", "imports": ["os"] * 33}],
    ],
)
def test_what_is_no_rule_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        a_policy(codeRules=wrong)


# --- code that nobody has looked at ---------------------------------------------------------------------------------


def test_code_that_was_not_read_is_unreadable() -> None:
    policy, spec = govern(Deny="os"), asking(CODE)
    assert evaluate(spec, policy).decision is Decision.DENIED
    assert unread(spec, policy.code_rules, None)


def test_a_reading_of_other_code_or_for_other_modules_counts_for_nothing() -> None:
    policy, spec = govern(Deny="os"), asking(CODE)
    reading = read(policy, CODE, spec=spec)
    assert evaluate(spec, policy, reading).allowed, "control"
    for other, counts in ((asking(IMPORTS_OS), policy), (asking(CODE, CODE), policy), (spec, govern(Deny="socket"))):
        assert unread(other, counts.code_rules, reading)
        assert evaluate(other, counts, reading).decision is Decision.DENIED
    assert not unread(spec, govern(Note="os").code_rules, reading), "another action is no other question"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"null",
        b"[0",
        b"[7]",
        b"{}x",
        b"0",
        b"true",
        b'["os"]',
        b"[0.5]",
        b"[" * 100_000,
        b"\xff",
        b"[[0]]",
        b"[0,0]",
        b"[-1]",
        b"[true]",
        b"{}",
        b'""',
    ],
    ids=lambda one: one[:10].decode(errors="ignore") or "no text",
)
def test_an_answer_that_is_none_means_unreadable(said: bytes) -> None:
    policy, spec = govern(Deny="os"), asking(CODE)
    reading = Inquiry(spec, [CODE], [], policy.code_rules).reading(said)
    assert evaluate(spec, policy, reading).decision is Decision.DENIED


def test_what_is_too_large_is_not_sent() -> None:
    large = b"#" * 1_000_001
    policy = govern(Deny="os")
    files = {"large.py": large, "small.py": IMPORTS_OS}
    spec = asking(CODE, files=files)
    inquiry = Inquiry(spec, [CODE], list(files.values()), policy.code_rules)
    assert sum(map(len, inquiry.message())) < 100
    assert found(policy, CODE, files=files) == [
        (UNREADABLE, "Deny", "spec.files[0]"),
        ("import os", "Deny", "spec.files[1]"),
    ]


def test_nothing_of_the_code_is_kept() -> None:
    policy, spec = govern(Note="os"), asking(b"import os; incode = 'incode'", b"import incode", b"!incode")
    codes = (b"import os; incode = 'incode'", b"import incode", b"!incode")
    reading = read(policy, *codes, spec=spec)
    told = str(evaluate(spec, policy, reading)) + str(find(spec, policy.code_rules, reading)) + str(reading)
    assert "import os" in told, "control"
    assert "incode" not in told


# --- whatever the code --------------------------------------------------------------------------------------------

MODULES = ["os", "os.path", "subprocess", "a.b"]
some_modules = st.lists(st.sampled_from(MODULES), min_size=1, unique=True).map(" ".join)
some_rules = st.dictionaries(st.sampled_from([one.value for one in CodeAction]), some_modules)
sources = st.lists(
    st.sampled_from([b"import os", b"import os.path", b"from a import b", b"import a", BROKEN, b"", b"import json"])
    | st.text().map(lambda one: one.encode("utf-8", "surrogatepass")),
    min_size=1,
    max_size=5,
)


@functools.cache
def verdict_of(codes: tuple[bytes, ...], listed: tuple[tuple[str, str], ...]) -> Any:
    policy, spec = govern(**dict(listed)), asking(*codes)
    return evaluate(spec, policy, read(policy, *codes, spec=spec))


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@given(codes=sources, listed=some_rules)
def test_total_and_the_same_each_time(codes: list[bytes], listed: dict[str, str]) -> None:
    verdict = verdict_of(tuple(codes), tuple(listed.items()))
    policy, spec = govern(**listed), asking(*codes)
    assert evaluate(spec, policy, read(policy, *codes, spec=spec)) == verdict
    assert len(set(verdict.grants)) == len(verdict.grants) <= MAX_CODE_GRANTS


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@given(codes=sources, listed=some_rules, action=st.sampled_from(list(DECISIONS)), modules=some_modules)
def test_more_rules_never_decide_better(codes: list[bytes], listed: dict[str, str], action: str, modules: str) -> None:
    fewer = verdict_of(tuple(codes), tuple(listed.items()))
    joined = dict.fromkeys([*listed.get(action, "").split(), *modules.split()])
    more = verdict_of(tuple(codes), tuple((listed | {action: " ".join(joined)}).items()))
    assert RANK[more.decision] >= RANK[fewer.decision]


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@given(codes=sources, listed=some_rules)
def test_unreadable_is_never_better_than_anything_that_can_be_read(codes: list[bytes], listed: dict[str, str]) -> None:
    readable, broken = (verdict_of(tuple(one), tuple(listed.items())) for one in (codes, [*codes, BROKEN]))
    strictest = max((RANK[DECISIONS[one]] for one in listed), default=0)
    assert RANK[readable.decision] <= RANK[broken.decision] == strictest


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@given(codes=sources, listed=some_rules)
def test_each_of_the_findings_has_its_strictest_action(codes: list[bytes], listed: dict[str, str]) -> None:
    policy, spec = govern(**listed), asking(*codes)
    for one in find(spec, policy.code_rules, read(policy, *codes, spec=spec)):
        module = one.found.removeprefix("import ")
        fitting = [name for name, modules in listed.items() if one.found == UNREADABLE or module in modules.split()]
        assert one.action.severity == max(CodeAction(name).severity for name in fitting)
