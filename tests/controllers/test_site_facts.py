"""File systems and wide-area paths of a site's configuration are facts that policies see."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from harness import WAIT_S
from waystage.backplane import Backplane, BackplaneConfig, Subscription
from waystage.backplane.inbox import Arrival
from waystage.controllers.site import SiteError, site_from, start
from waystage.controllers.site_facts import declared, withdrawn
from waystage.events import Envelope, FileSystemDeclared, WidePathDeclared
from waystage.interconnect.graphml import read_topology
from waystage.state import State

SCRATCH = {"name": "scratch", "targets": 24, "bytes_per_s": "118 MB", "slowdown": [[1, 1], [8, 3.19]]}
ARCHIVE = {"name": "archive.example.org", "bytes_per_s": "1 GB", "rtt_s": 0.04, "host": "dtn1"}


def config(tmp_path: Path, **values: Any) -> Any:
    listen = f"unixsock-stream/{tmp_path}/b.sock"
    given = {"state_dir": str(tmp_path / "state"), "backplane": {"listen": [listen]}, **values}
    return site_from(given | {"flows": {"listen": "none"}}, "controller.yaml")


def state_of(tmp_path: Path, **values: Any) -> State:
    """The state of a controller with this configuration, started and stopped."""
    from waystage.controllers.journal import Journal

    start(config(tmp_path, **values)).close()
    journal = Journal(tmp_path / "state" / "journal.db")
    try:
        restored = journal.restore()
        state = State.restore(restored.state) if restored.state else State()
        for entry in restored.entries:
            state.apply(entry.envelope)
        return state
    finally:
        journal.close()


def test_what_a_site_declares_is_in_the_state_until_it_is_left_out(tmp_path: Path) -> None:
    state = state_of(tmp_path, file_systems=[SCRATCH], wide_paths=[ARCHIVE])
    assert state.file_systems["scratch"] == FileSystemDeclared(
        file_system="scratch", targets=24, target_bps=944_000_000, slowdown=((1, 1), (8, 3.19))
    )
    assert state.wide_paths["archive.example.org"] == WidePathDeclared(
        peer="archive.example.org", host="dtn1", rate_bps=8_000_000_000, rtt_s=0.04
    )
    again = state_of(tmp_path, file_systems=[SCRATCH | {"name": "home"}])
    assert set(again.file_systems) == {"home"} and not again.wide_paths


def test_a_controller_that_has_started_knows_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = Subscription.offer

    def late(self: Subscription, *items: Arrival) -> None:
        time.sleep(0.3)
        offer(self, *items)

    monkeypatch.setattr(Subscription, "offer", late)
    with contextlib.closing(start(config(tmp_path, topology="paper", file_systems=[SCRATCH]))):
        endpoint = f"unixsock-stream/{tmp_path}/b.sock"
        with Backplane.open(BackplaneConfig(connect=(endpoint,))) as client:
            state = State.restore(bytes(client.snapshot(WAIT_S).state))
    assert state.topology == read_topology("paper") and "scratch" in state.file_systems


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"file_systems": [SCRATCH | {"targets": 0}]}, r"file_systems\[0\].targets: 0: give 1 to"),
        ({"file_systems": [SCRATCH, SCRATCH]}, "is there twice"),
        ({"file_systems": [SCRATCH | {"slowdown": [[8, 2], [1, 1]]}]}, "must rise"),
        ({"file_systems": [SCRATCH | {"slowdown": [[1, 0.5]]}]}, "both 1 or more"),
        ({"file_systems": [SCRATCH | {"bytes_per_s": "fast"}]}, r"file_systems\[0\].bytes_per_s"),
        ({"file_systems": [SCRATCH | {"name": "a\nb"}]}, "control characters"),
        ({"wide_paths": [ARCHIVE | {"bytes_per_s": 0}]}, "more than 0"),
        ({"wide_paths": [ARCHIVE | {"rtt_s": float("nan")}]}, "0 to 60"),
        ({"tier": "node", "above": {"connect": ["tls/x:1"]}, "wide_paths": [ARCHIVE]}, "global controller"),
    ],
)
def test_an_entry_that_cannot_be_is_named(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SiteError, match=words):
        start(config(tmp_path, **values))


def test_only_what_is_no_longer_declared_is_withdrawn() -> None:
    state = State()
    for name in ("a", "b"):
        event = FileSystemDeclared(file_system=name, targets=1)
        state.apply(Envelope(event=event, event_id=name))
    kept = declared(site_from({"file_systems": [SCRATCH | {"name": "a"}]}, "x").file_systems, ())
    assert list(withdrawn(kept, state)) == [FileSystemDeclared(file_system="b", targets=0)]
