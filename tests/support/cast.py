"""The terminal cast at the top of README: `make cast` runs commands on the cluster and writes docs/cast.svg.

Every line is the output of a command, at the time when the command printed the line. rich draws the picture. CSS makes
each line visible at its time; there is no script. Readers who prefer reduced motion see all lines at once.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).parents[2]
COLUMNS: Final = 100
TYPING: Final = 0.03
"""Seconds for each character of a command."""
PAUSE: Final = 1.2
"""Seconds between the end of a command and the next prompt."""
ATTACK: Final = """codeexec run -c 'import socket; socket.create_connection(("1.1.1.1", 443))' 2>&1 | tail -n 1"""
FORMAT: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>codeexec runs code, stops an attack, and lists the records</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
@keyframes appear {{ from {{ visibility: hidden; }} to {{ visibility: visible; }} }}
@media (prefers-reduced-motion: no-preference) {{
APPEARING
}}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Line:
    """A line of the terminal, and when it was there, in seconds."""

    at: float
    text: Text


def scene() -> list[tuple[str, list[str]]]:
    """Each command as it is shown, and as it is run."""
    listing = "kubectl get codeexecutions -n codeexec-sandbox"
    return [
        ("python quickstart.py", [sys.executable, "-c", quickstart()]),
        (ATTACK, ["bash", "-c", ATTACK]),
        (listing, listing.split()),
    ]


def quickstart() -> str:
    """The first Python block of README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "README.md has no Python block"
    return found[1]


def play(shown: str, command: list[str], clock: float) -> tuple[list[Line], float]:
    """Run a command; its lines, and the time after it."""
    clock += len(shown) * TYPING
    lines = [Line(clock, Text.assemble(("$ ", "bold green"), (shown, "bold")))]
    begun = time.monotonic()
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1", "PATH": commands}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    assert process.stdout
    for line in process.stdout:
        lines.append(Line(clock + time.monotonic() - begun, Text(line.rstrip()[:COLUMNS])))
    process.wait()
    return lines, clock + time.monotonic() - begun + PAUSE


def picture(lines: list[Line]) -> str:
    """The SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115 - nothing is written
    for line in lines:
        console.print(line.text, soft_wrap=True)
    appearing = "\n".join(
        f'text[clip-path="url(#cast-line-{number})"] {{ animation: appear 10ms {line.at:.2f}s both; }}'
        for number, line in enumerate(lines)
    )
    form = FORMAT.replace("APPEARING", appearing.replace("{", "{{").replace("}", "}}"))
    return console.export_svg(title="codeexec", theme=MONOKAI, code_format=form, unique_id="cast")


def main() -> None:
    """Play the scene and write the picture."""
    clock, lines = 0.5, []
    for shown, command in scene():
        printed, clock = play(shown, command, clock)
        lines += printed
    for line in lines:
        print(f"{line.at:6.2f} {line.text.plain}")
    (ROOT / "docs" / "cast.svg").write_text(picture(lines))
    print("wrote docs/cast.svg")


if __name__ == "__main__":
    main()
