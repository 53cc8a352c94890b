"""Lines of clients that wait to be handled, users in turn.

Arrives: lines with their connections, from the socket's thread.
Leaves: the next lines, one of each user at a time; refusals where a user has too many.
Must not know: what a line means.
"""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Callable

from waystage.local_rpc import Connection

MOST_PER_USER = 256
"""Lines of one user that wait: more are refused, so that a flood costs its own user.

Root and submitters send for others, a line for each of many jobs at once: theirs all wait."""

REFUSAL = json.dumps(
    {"error": "this user has too many requests on their way to the stager: wait for answers", "kind": "quota"}
).encode("ascii")


class Inbox:
    """The handler of the socket. `wake` is called, in the socket's thread, where there is something to handle."""

    def __init__(self, wake: Callable[[], None], trusted: frozenset[int] = frozenset()) -> None:
        self._wake = wake
        self._trusted = trusted | {0}
        self._lock = threading.Lock()
        self._of_user: dict[int, collections.deque[tuple[Connection, bytes]]] = {}
        self._turns: collections.deque[int] = collections.deque()
        self._gone: list[Connection] = []

    def opened(self, connection: Connection) -> None:
        """Nothing is kept of a connection without a line."""

    def line(self, connection: Connection, data: bytes) -> None:
        uid = connection.peer.uid
        with self._lock:
            waiting = self._of_user.get(uid)
            if waiting is None:
                waiting = self._of_user[uid] = collections.deque()
                self._turns.append(uid)
            full = len(waiting) >= MOST_PER_USER and uid not in self._trusted
            if not full:
                waiting.append((connection, data))
        if full:
            connection.send(REFUSAL)
        else:
            self._wake()

    def closed(self, connection: Connection) -> None:
        with self._lock:
            self._gone.append(connection)
        self._wake()

    def take(self, most: int) -> list[tuple[Connection, bytes]]:
        """Up to `most` lines."""
        taken: list[tuple[Connection, bytes]] = []
        with self._lock:
            while self._turns and len(taken) < most:
                uid = self._turns.popleft()
                waiting = self._of_user[uid]
                taken.append(waiting.popleft())
                if waiting:
                    self._turns.append(uid)
                else:
                    del self._of_user[uid]
        return taken

    def waiting(self) -> bool:
        with self._lock:
            return bool(self._turns)

    def gone(self) -> list[Connection]:
        """Connections that have ended since the last call."""
        with self._lock:
            gone, self._gone = self._gone, []
        return gone
