"""The operator: each of its modules, and that it starts far enough to miss its settings."""

import importlib
import pkgutil
import runpy
import sys
from contextlib import redirect_stderr
from importlib.metadata import version
from io import StringIO

import codeexec_operator

for module in pkgutil.walk_packages(codeexec_operator.__path__, "codeexec_operator."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
said = StringIO()
try:
    sys.argv = ["codeexec_operator"]
    with redirect_stderr(said):
        runpy.run_module("codeexec_operator", run_name="__main__")
except SystemExit as end:
    print(end, file=said)
assert "leader_lease" in said.getvalue(), said.getvalue()
assert version("codeexec-operator") == version("codeexec")
