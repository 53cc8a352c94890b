"""A service's main thread learns of a signal that another thread received, without looking for it now and then."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, threading
from waystage.cli.service import Signals

signals = Signals()
waiting = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
waiting.start()
signals.wait()
print(signals.count)
waiting.join()
signals.wait()  # One that came before counts.
"""


def test_a_signal_that_another_thread_receives_ends_the_wait() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("1\n", 0), ended.stderr
