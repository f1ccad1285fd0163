"""What blocks are run with. Standard library only."""

import os

import workspace

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": workspace.WORKSPACE,
    "USER": "sandbox",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    # Output that was printed must not be lost in a buffer when the limit ends the code.
    "PYTHONUNBUFFERED": "1",
    # Python puts the folder of the script first on its path; modules are found there without byte-code litter.
    "PYTHONDONTWRITEBYTECODE": "1",
    # Each Python would run what earlier code has left in its user's folder of packages, before its own script.
    "PYTHONNOUSERSITE": "1",
    # Matplotlib: its list of fonts stays out of the workspace, and it draws without a display.
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "MPLBACKEND": "Agg",
    # Else NumPy starts a thread for each core of the node, whatever the pod's share of them is.
    "OPENBLAS_NUM_THREADS": "1",
}
PROGRAMS = {"python": "python3", "bash": "bash", "sh": "sh", "javascript": "node", "pwsh": "pwsh"}
"""What each language is run with, where the image has it."""


def missing(block):
    """What to tell if the image lacks the program of a block; empty if it is there."""
    program = block["command"][0]
    if block["language"] not in PROGRAMS or _is_there(program):
        return ""
    known = ", ".join(language for language, program in PROGRAMS.items() if _is_there(program))
    language = block["language"]
    # Beside our words those of AutoGen's Docker executor, which raises them.
    theirs = "Powershell or pwsh is not installed" if program == "pwsh" else f"Unsupported language: {language}"
    return f"unknown language {language}: the sandbox image has no {program} ({theirs}); supported languages: {known}"


def _is_there(program):
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in ENVIRONMENT["PATH"].split(":"))
