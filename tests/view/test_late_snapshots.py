"""A controller's snapshot that arrives late takes back nothing that the view has heard since."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import WAIT_S, wait_until
from waystage.backplane import Backplane, BackplaneConfig
from waystage.controllers import GlobalController
from waystage.events import JobStarted
from waystage.policies.base import load_policy
from waystage.view import live as lives
from waystage.view.feed import About, Feed
from waystage.view.live import Live


class Late:
    """Holds back the first answer of a method of the backplane until the test lets it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.answered, self.go_on = threading.Event(), threading.Event()
        self._ask: Callable[..., Any] = getattr(Backplane, method)
        monkeypatch.setattr(Backplane, method, lambda *arguments: self._late(*arguments))

    def _late(self, *arguments: Any) -> Any:
        found = self._ask(*arguments)
        self.answered.set()
        assert self.go_on.wait(WAIT_S)
        return found


@pytest.fixture
def config(unix_endpoint: str, tmp_path: Path) -> Iterator[BackplaneConfig]:
    with (
        Backplane.open(BackplaneConfig(name="site", listen=(unix_endpoint,))) as backplane,
        GlobalController(load_policy("null"), [], backplane, tmp_path / "state"),
    ):
        yield BackplaneConfig(name="view", connect=(unix_endpoint,))


@pytest.fixture
def unix_endpoint(tmp_path: Path) -> str:
    return f"unixsock-stream/{tmp_path}/b.sock"


def test_events_that_were_folded_while_a_snapshot_was_on_its_way_stay(
    config: BackplaneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(monkeypatch, "snapshot")
    monkeypatch.setattr(lives, "HOLD_NS", 100_000_000)
    feed = Feed(About(title="test", mode="live"))
    live = Live(config, feed)
    with Backplane.open(msgspec.structs.replace(config, name="publisher")) as publisher:
        try:
            assert late.answered.wait(WAIT_S)
            publisher.publish(JobStarted(job_id="1", nodes=("c1",)), confirm=True, timeout=WAIT_S)
            wait_until(lambda: live.fold() and feed.model.state.jobs, what="the job in the view")
            late.go_on.set()
            wait_until(lambda: live.fold() and live.settled, what="the state of the controller")
            assert list(feed.model.state.jobs) == ["1"]
        finally:
            late.go_on.set()
            live.close()


def test_a_publisher_that_came_while_the_others_were_asked_for_stays(
    config: BackplaneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(monkeypatch, "publishers")
    feed = Feed(About(title="test", mode="live"))
    live = Live(config, feed)
    with Backplane.open(msgspec.structs.replace(config, name="publisher")) as publisher:

        def present() -> bool:
            live.fold()
            row = feed.model.whole(time.time_ns()).set.get("publishers", {}).get("publisher", {})
            return row.get("present") == 1

        try:
            assert late.answered.wait(WAIT_S)
            publisher.publish(JobStarted(job_id="1", nodes=("c1",)))
            wait_until(present, what="the publisher in the view")
            late.go_on.set()
            wait_until(lambda: live.fold() and live.settled, what="the state of the controller")
            assert present()
        finally:
            late.go_on.set()
            live.close()
