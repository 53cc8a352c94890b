"""The sessions of `waystage serve` as flows: each copy and each proxy is reported to this host's agent, and obeys it.

Arrives: a running server. Leaves: flows of class `wan`; rates and pauses of single sessions.
Must not know: how bytes are moved, the protocol between engine and agent.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waystage.flows import HERE, FlowDescription, FlowEnd, reported, socket_path, storage

if TYPE_CHECKING:
    from waystage._native import WanServer

MOST = 256
"""Sessions reported at once, each by a thread; further ones are not reported."""


@dataclass(frozen=True)
class _Counts:
    bytes_done: int
    bytes_total: int
    limited_by: str


class _Session:
    """One session in the form of a task; its counts are set by `SessionFlows.look`."""

    controls = ("rate", "pause")

    def __init__(self, server: WanServer, number: int) -> None:
        self._server, self._number = server, number
        self.counts = _Counts(0, 0, "")

    def flow(self) -> _Counts:
        return self.counts

    def progress(self) -> dict[str, int]:
        return {"bytes": self.counts.bytes_done}

    def set_rate(self, bytes_per_s: int | None) -> None:
        self._server.set_session_rate(self._number, bytes_per_s)

    def pause(self) -> None:
        self._server.set_session_paused(self._number, True)

    def resume(self) -> None:
        self._server.set_session_paused(self._number, False)


class SessionFlows:
    """Reports what `look` finds, until `close`. Without an agent it does nothing."""

    def __init__(self, server: WanServer) -> None:
        self._server = server
        self._reported: dict[int, tuple[_Session, ExitStack]] = {}

    def look(self) -> None:
        """Take in the sessions of now; flows of those that have ended end."""
        path = socket_path()
        if not self._reported and (path is None or not path.exists()):
            return
        found = self._server.sessions()
        for number in self._reported.keys() - {session[0] for session in found}:
            self._reported.pop(number)[1].close()
        for number, _, address, (push, proxy, tree), counts in found:
            if number not in self._reported and len(self._reported) < MOST:
                self._begin(number, address, push, proxy, tree)
            if number in self._reported:
                self._reported[number][0].counts = _Counts(*counts)

    def _begin(self, number: int, address: str, push: bool, proxy: bool, tree: Path) -> None:
        far = FlowEnd(peer=address.rpartition(":")[0].strip("[]"))
        here = HERE if proxy else storage(tree)
        ends = (far, here) if push or proxy else (here, far)
        session, flow = _Session(self._server, number), ExitStack()
        about = FlowDescription("wan", "serve", source=ends[0], destination=ends[1])
        flow.enter_context(reported(session, about))
        self._reported[number] = session, flow

    def close(self) -> None:
        """End the flows of all sessions."""
        for _, flow in self._reported.values():
            flow.close()
        self._reported.clear()
