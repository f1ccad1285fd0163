"""`python -m executor_client`: the command line."""

from executor_client.cli import main

main(prog_name="codeexec")
