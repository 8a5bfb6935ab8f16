"""Ctrl-C while the command `uncork` is still importing: status 130, and no traceback.

Imported before anything else. In a program of somebody else's it does nothing.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading

_NAMES = ("uncork", "uncork.exe", "uncork-script.py")


def _is_the_command() -> bool:
    given = sys.orig_argv
    started = os.path.basename(sys.argv[0]) if sys.argv else ""
    return started in _NAMES or ("-m", "uncork") in itertools.pairwise(given)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # nothing was begun, so nothing is lost


def imported() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, as everywhere."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    _is_the_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _leave)
