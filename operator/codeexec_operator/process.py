"""The process of the operator: reads the settings, then lets kopf run the handlers."""

import asyncio
import ctypes
import gc
import logging
import os
import platform
import resource
import sys
from typing import Final

import kopf
import uvloop
from pydantic import ValidationError

from codeexec_operator.handlers import events
from codeexec_operator.settings import Settings

_PR_SET_DUMPABLE: Final = 4


def main() -> None:
    """Run the operator until it is told to stop."""
    try:
        settings = Settings()  # from the environment
    except ValidationError as error:
        sys.exit(f"codeexec operator: invalid settings: {error}")
    kopf.configure(log_format=kopf.LogFormat.JSON, verbose=settings.log_level == "DEBUG")
    logging.getLogger().setLevel(settings.log_level)
    for chatty in ("kopf.objects", "kopf.activities"):  # a line for each event that a handler has passed on
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for told in ("kopf._core.reactor", "kopf._core.engines", "kopf._cogs"):  # our supervisor says what has failed
        logging.getLogger(told).setLevel(logging.CRITICAL)
    _close_memory()
    _allow_many_connections()
    # kopf names itself after this; else it asks for the name of the user, and the uid of the image has none.
    os.environ.setdefault("POD_ID", platform.node())
    gc.collect()
    gc.freeze()  # each later search for garbage stops the only thread, and what the imports made is never garbage
    kopf.run(
        loop=uvloop.new_event_loop(),
        registry=events.PROCESS,
        namespaces=settings.config_map[:1],
        standalone=True,
        stop_flag=(stop := asyncio.Event()),
        memo=kopf.Memo(settings=settings, stop=stop),
    )


def _close_memory() -> None:
    """Not dumpable: other processes of the same user, such as the one that reads code, can't read what is in here."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        sys.exit("codeexec operator: prctl(PR_SET_DUMPABLE) failed")


def _allow_many_connections() -> None:
    """Each sandbox takes one, and the customary limit of 1024 open files is lower than what is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
