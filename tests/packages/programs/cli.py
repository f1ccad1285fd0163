"""The command line: each of its modules, its other name, and what it says without the extra `checkpoints`."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

import executor_client.cli

for module in pkgutil.iter_modules(executor_client.cli.__path__, "executor_client.cli."):
    importlib.import_module(module.name)
plugin = Path(sys.executable).with_name("kubectl-codeexec")
assert "Usage" in subprocess.run([plugin, "--help"], capture_output=True, text=True, check=True).stdout

Path("audit.log").touch()
for command in ("audit keygen here signing.key", "audit checkpoint --to . --signing-key signing.key audit.log"):
    done = CliRunner().invoke(executor_client.cli.main, command.split())
assert done.exit_code != 0, done
assert '`pip install ".[checkpoints]"`' in done.output, done.output
