"""Loaded by a worker of a test that is to be killed: SIGKILL at a place in the code that the test names.

DOOM is MODULE:NAME:before or MODULE:NAME:after, where the first call is the last thing that the worker does, or
MODULE:NAME:SECONDS, that long after the first call has begun.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
import time
from typing import Any


def dask_setup(worker: Any) -> None:
    """What `dask worker --preload` calls."""
    module, name, when = os.environ["DOOM"].split(":")
    holder = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        holder = getattr(holder, part)
    function = getattr(holder, last)

    @functools.wraps(function)
    def doomed(*arguments: Any, **more: Any) -> Any:
        if when == "before":
            die()
        elif when != "after":
            threading.Thread(target=die, args=(float(when),), daemon=True).start()
        result = function(*arguments, **more)
        if when == "after":
            die()
        return result

    setattr(holder, last, doomed)


def die(seconds: float = 0.0) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
