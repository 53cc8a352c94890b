"""Receives samples of a key in batches, in a separate thread.

Arrives: a session, a key.
Leaves: samples in the order of their arrival, several at a time.
Must not know: events, subscriptions.

A callback for each sample would have Zenoh's thread wait for the interpreter's lock once a sample: 15 us each, where
the queue below costs 6. Samples that come singly are passed on at once; a stream of them is passed on every COALESCE_S,
or less often where that is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

import zenoh

log = logging.getLogger(__name__)

WAITING = 8192
"""Samples that wait for the thread. Beyond it Zenoh waits too, and its congestion control reaches the publishers."""

BATCH = 1024
"""Most samples that are passed on together."""

COALESCE_S = 0.002
"""Between two batches of a stream, where nothing else is asked for."""


class BatchReceiver:
    """From now on, `deliver` has every sample of `key`, in one thread, until `undeclare`. Raises zenoh.ZError."""

    def __init__(
        self,
        session: zenoh.Session,
        key: str,
        deliver: Callable[[list[zenoh.Sample]], None],
        coalesce_s: float = COALESCE_S,
    ) -> None:
        self._deliver, self._coalesce_s = deliver, coalesce_s
        self._subscriber = session.declare_subscriber(key, zenoh.handlers.FifoChannel(WAITING))
        self._thread = threading.Thread(target=self._run, name="waystage-receiver", daemon=True)
        self._thread.start()

    def undeclare(self) -> None:
        """Stop; what has arrived is delivered before, unless this is called from `deliver`."""
        with contextlib.suppress(zenoh.ZError):
            self._subscriber.undeclare()  # type: ignore[no-untyped-call]
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        queue = self._subscriber.handler
        last = -math.inf
        batch: list[zenoh.Sample] = []
        while True:
            full, batch = len(batch) == BATCH, []
            try:
                batch.append(queue.recv())
                if not full and (pause := last + self._coalesce_s - time.monotonic()) > 0:
                    time.sleep(pause)
                while len(batch) < BATCH and (sample := queue.try_recv()) is not None:
                    batch.append(sample)
            except zenoh.ZError:
                if not batch:
                    return
            try:
                self._deliver(batch)
            except Exception:
                log.exception("receiving %d samples failed", len(batch))
            last = time.monotonic()
