"""How many round trips pass before contents flow: counted, not timed, on a path that carries what is said in turns."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from pathlib import Path

import pytest

from copying_trees import snapshot
from harness import WAIT_S
from remote_copy_support import Site, free_pair, peer, server_here
from waystage._native import RemoteCopy
from waystage.native_options.copies import RemoteCopyOptions

QUIET_S = 0.3
"""An end that was silent for this time has nothing more to send."""

CONTENT_BYTES = 1000
"""Datagrams of the sender with this size carry contents: its other first messages over UDP are short."""

ATTEMPTS = 10
"""On a busy machine an end may be slow to send all: that makes more turns, never fewer."""


class Turns:
    """Carries TCP and UDP between a client and a server, each hearing the other when that has nothing more to say.

    `contents` is the number of turns, the client's first one being 0, before contents were said; from then on all is carried at once.
    """

    def __init__(self, server_port: int, push: bool) -> None:
        self._sender = 0 if push else 1
        self._server = ("127.0.0.1", server_port)
        self._listener, self._udp = free_pair()
        self.port: int = self._listener.getsockname()[1]
        self.contents: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self._listener.close()
        self._udp.close()

    def _run(self) -> None:
        while not select.select([self._listener], [], [], 0.05)[0]:
            if self._stop.is_set():
                return
        near, _ = self._listener.accept()
        far = socket.create_connection(self._server)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.connect(self._server)
        with near, far, datagrams:
            client: tuple[str, int] | None = None
            turn, over = 0, False
            while not over and not self._stop.is_set():
                stream, udp = (near, self._udp) if turn % 2 == 0 else (far, datagrams)
                said, letters = b"", []
                last = None
                while not self._stop.is_set():
                    ready = select.select([stream, udp], [], [], 0.02)[0]
                    if stream in ready:
                        data = stream.recv(1 << 16)
                        said, over = said + data, not data
                    if udp in ready:
                        letter, source = udp.recvfrom(1 << 16)
                        client = source if udp is self._udp else client
                        letters.append(letter)
                    if ready:
                        last = time.monotonic()
                    free = self.contents is not None
                    if over or free or (last is not None and time.monotonic() - last > QUIET_S):
                        break
                spoken = turn % 2 == self._sender and any(len(each) >= CONTENT_BYTES for each in letters)
                if self.contents is None and spoken:
                    self.contents = turn
                (far if turn % 2 == 0 else near).sendall(said)
                for letter in letters:
                    if turn % 2 == 0:
                        datagrams.send(letter)
                    elif client is not None:
                        self._udp.sendto(letter, client)
                turn += 1


@pytest.mark.parametrize(("push", "most"), [(True, 4), (False, 5)], ids=["push", "pull"])
def test_contents_flow_as_soon_as_both_ends_know_what_is_wanted(
    site: Site, tmp_path: Path, push: bool, most: int
) -> None:
    """TCP's own handshake is one more round trip, so contents leave the client after 1 + 4 / 2, the server after 1 + 5 / 2."""
    tree = (tmp_path if push else site.given) / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(random.Random(1).randbytes(100_000))
    seen = []
    with server_here(site):
        for attempt in range(ATTEMPTS):
            box = Turns(site.port, push)
            to = (site.data if push else tmp_path) / f"copy{attempt}"
            local, remote = (tree, to) if push else (to, tree)
            options = RemoteCopyOptions(workers=2)
            try:
                with RemoteCopy(
                    local, os.fsencode(remote), peer(site, port=box.port), options, push=push
                ) as copying:
                    assert copying.wait(WAIT_S) and copying.complete
            finally:
                box.close()
            assert snapshot(to) == snapshot(tree)
            assert copying.connection()[0]["udp"] == 1
            seen.append(box.contents)
            if box.contents == most:
                break
    assert min(turns for turns in seen if turns is not None) == most, seen
