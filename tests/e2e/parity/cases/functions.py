"""Functions given at construction, which code imports from a module."""

from collections.abc import Sequence
from typing import Any

from autogen_core.code_executor import Alias, FunctionWithRequirements, with_requirements
from parity.case import Case, Group, Scenario, Seen, gives, raises
from parity.parties import Party

CHECKED = (
    "Nothing is installed at run time: a package that a function requires has to be in the image, and that is checked. "
    "The Docker executor needs `pip` in the image for it, which this one hasn't."
)

NO_SOURCE = (
    "module, class, method, function, traceback, frame, or code object was expected, got FunctionWithRequirements"
)


def add(one: int, other: int = 2) -> int:
    """Adds two numbers."""
    return one + other


def double(number: int) -> int:
    return add(number, number)


@with_requirements(global_imports=["math", Alias("json", "js")])
def circle(radius: float) -> str:
    return js.dumps(round(math.pi * radius**2, 2))  # type: ignore[name-defined]  # noqa: F821


@with_requirements(global_imports=["no_such_module"])
def unloadable() -> None:
    return None


@with_requirements(python_packages=["packaging"], global_imports=["packaging.version"])
def major(version: str) -> int:
    return packaging.version.parse(version).major  # type: ignore[name-defined]  # noqa: F821


@with_requirements(python_packages=["codeexec-parity-absent"])
def of_absent_package() -> int:
    return 1


greet = FunctionWithRequirements.from_str(
    "def greet(name: str) -> str:\n    return os.path.join('hello', name)\n", global_imports=["os"]
)
TOGETHER = (add, double, circle, greet)


def _gives(functions: Sequence[Any], *codes: str | tuple[str, str], **options: Any) -> Scenario:
    """The outputs of calls of an executor with these functions."""

    async def scenario(party: Party) -> Seen:
        executor = await party.shared(functions=functions, **options)
        results = [await party.run(code, at=executor) for code in codes]
        return {"exit codes": [one.exit_code for one in results], "output": "".join(one.output for one in results)}

    return scenario


def _fails(functions: Sequence[Any], *words: str) -> Scenario:
    """Which of these words the error has that the first call raises."""

    async def scenario(party: Party) -> Seen:
        executor = await party.started(functions=functions)
        try:
            result = await party.run("print(1)", at=executor)
        except ValueError as error:
            return {"raises": "ValueError", "says": [one for one in words if one in str(error)]}
        return {"exit code": result.exit_code}

    return scenario


def _module_name(name: str) -> Scenario:
    async def scenario(party: Party) -> Seen:
        try:
            party.make(functions_module=name)
        except ValueError as error:
            return {"raises": "ValueError", "says": "valid Python identifier" in str(error)}
        return {}

    return scenario


async def _from_callable(party: Party) -> Seen:
    function = FunctionWithRequirements.from_callable(add, global_imports=["math"])
    return await _gives([function], "from functions import add\nprint(add(1))")(party)


async def _property(party: Party) -> Seen:
    return {"functions_module": party.make(functions_module="tools").functions_module}  # type: ignore[attr-defined]


PROMPT = 'tools: def add(one: int, other: int = 2) -> int:\n    """Adds two numbers."""\n    ...'


async def _prompt(party: Party) -> Seen:
    executor = party.make(functions=[add], functions_module="tools")
    return {"prompt": executor.format_functions_for_prompt("$module_name: $functions")}  # type: ignore[attr-defined]


FUNCTIONS = Group(
    "Functions",
    (
        Case(
            id="function",
            about="a function, in two calls",
            scenario=_gives(
                TOGETHER, "from functions import add\nprint(add(1))", "import functions\nprint(functions.add(2, 2))"
            ),
            docker={"exit codes": [0, 0], "output": "3\n4\n"},
        ),
        Case(
            id="functions-of-each-other",
            about="two functions of which one calls the other",
            scenario=_gives(TOGETHER, "from functions import double\nprint(double(4))"),
            docker={"exit codes": [0], "output": "8\n"},
        ),
        Case(
            id="function-with-imports",
            about="`with_requirements(global_imports=...)`, one with another name",
            scenario=_gives(TOGETHER, "from functions import circle\nprint(circle(2))"),
            docker={"exit codes": [0], "output": "12.57\n"},
        ),
        Case(
            id="function-as-text",
            about="`FunctionWithRequirements.from_str`",
            scenario=_gives(TOGETHER, "from functions import greet\nprint(greet('you'))"),
            docker={"exit codes": [0], "output": "hello/you\n"},
        ),
        Case(
            id="function-from-callable",
            about="`FunctionWithRequirements.from_callable`",
            scenario=_from_callable,
            docker=raises("TypeError", NO_SOURCE),
            ours={"exit codes": [0], "output": "3\n"},
            why="AutoGen documents it; its command-line executors fail to read its source.",
        ),
        Case(
            id="functions-module",
            about="`functions_module='tools'`",
            scenario=_gives([add], "from tools import add\nprint(add(1))", functions_module="tools"),
            docker={"exit codes": [0], "output": "3\n"},
        ),
        Case(
            id="functions-module-no-identifier",
            about="`functions_module='my-tools'`",
            scenario=_module_name("my-tools"),
            docker={"raises": "ValueError", "says": True},
        ),
        Case(
            id="functions-module-keyword",
            about="`functions_module='class'`",
            scenario=_module_name("class"),
            docker={},
            ours={"raises": "ValueError", "says": True},
            why="A keyword is no module name: no code could import it.",
        ),
        Case(
            id="no-functions",
            about="`import functions` where none were given",
            blocks=("try:\n    import functions\nexcept ImportError:\n    print('none')",),
            docker=gives(0, "none\n"),
        ),
        Case(
            id="function-not-loadable",
            about="a function whose imports fail, at the first call",
            scenario=_fails([unloadable], "Functions failed to load", "no_such_module"),
            docker={"raises": "ValueError", "says": ["Functions failed to load", "no_such_module"]},
        ),
        Case(
            id="function-with-package",
            about="a function that requires a package which is there",
            scenario=_gives([major], "from functions import major\nprint(major('3.11'))"),
            local={"exit codes": [0], "output": "3\n"},
            docker=raises("ValueError", "Pip install failed. /usr/bin/python: No module named pip"),
            ours={"exit codes": [0], "output": "3\n"},
            why=CHECKED,
        ),
        Case(
            id="function-with-absent-package",
            about="a function that requires a package which isn't there, without an index to install from",
            scenario=_fails(
                [of_absent_package], "Pip install failed", "the sandbox image lacks codeexec-parity-absent"
            ),
            docker={"raises": "ValueError", "says": ["Pip install failed"]},
            ours={
                "raises": "ValueError",
                "says": ["Pip install failed", "the sandbox image lacks codeexec-parity-absent"],
            },
            why=CHECKED,
        ),
        Case(
            id="functions-module-property",
            about="property `functions_module`",
            scenario=_property,
            local={"functions_module": "tools"},
            docker=raises(
                "AttributeError", "'DockerCommandLineCodeExecutor' object has no attribute 'functions_module'"
            ),
            ours={"functions_module": "tools"},
            why="The Local executor has it; it costs nothing.",
        ),
        Case(
            id="functions-for-prompt",
            about="`format_functions_for_prompt`",
            scenario=_prompt,
            local={"prompt": PROMPT},
            docker=raises(
                "AttributeError",
                "'DockerCommandLineCodeExecutor' object has no attribute 'format_functions_for_prompt'",
            ),
            ours={"prompt": PROMPT},
            why="The Local executor has it; it costs nothing.",
        ),
    ),
)

GROUPS = (FUNCTIONS,)
