"""Publishes staging events to the controllers, each until it is confirmed.

Arrives: batches of events in order.
Leaves: the same events at the controllers' journal; which batch is confirmed.
Must not know: requests, SQLite.

A separate thread, since a controller may be gone for an hour. Events may be published twice, which changes nothing,
and never out of order.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError
from waystage.events import Event, EventError
from waystage.jobs.notify import Notifier

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

Batch = Sequence[tuple[int, Event]]


class Publisher:
    """Publishes between `start` and `stop`. `confirmed` is called in its thread with the last number of a batch."""

    def __init__(self, config: BackplaneConfig, confirmed: Callable[[int], None]) -> None:
        self._config, self._confirmed = config, confirmed
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waystage-staging-events", daemon=True)
        self.trouble = ""
        """Why events wait, in one sentence; empty where none does."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._batches.put(None)
        self._thread.join(10.0)

    def publish(self, batch: Batch) -> None:
        """Publish one batch; the next only when it is confirmed."""
        self._batches.put(batch)

    def _run(self) -> None:
        notifier: Notifier | None = None
        while (batch := self._batches.get()) is not None:
            rest = list(batch)
            pause_s = FIRST_PAUSE_S
            while rest and not self._stop.is_set():
                try:
                    if notifier is None:
                        notifier = Notifier(Backplane.open(self._config))
                    while rest:
                        notifier.send(rest[0][1])
                        rest.pop(0)
                    self.trouble = ""
                except EventError as error:
                    log.error("an event is not published: %s", error)
                    rest.pop(0)
                except BackplaneError as error:
                    if not self.trouble:
                        log.warning("staging events wait for a controller: %s", error)
                    self.trouble = str(error)
                    if notifier is not None:
                        notifier.__exit__(None, None, None)
                        notifier = None
                    self._stop.wait(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if not rest:
                self._confirmed(batch[-1][0])
        if notifier is not None:
            notifier.__exit__(None, None, None)
