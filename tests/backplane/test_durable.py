"""A named subscriber that is killed with SIGKILL and started again, in separate processes."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import WAIT_S, halt, wait_until
from waystage.backplane import Backplane, BackplaneConfig, BackplaneError, Missed, NotConfirmed, keys, wire
from waystage.backplane.cursors import FileCursors
from waystage.backplane.inbox import Arrival
from waystage.backplane.outbox import ReplayEnd, ReplayRequest
from waystage.backplane.properties import Wanted
from waystage.backplane.subscription import Replayed, Subscription
from waystage.controllers import GlobalController
from waystage.events import Envelope, EventError, JobFinished, JobStarted, encode
from waystage.policies.base import load_policy

READER = textwrap.dedent(
    """
    import json, sys, threading
    from pathlib import Path
    from waystage.backplane import Backplane, BackplaneConfig, Missed
    endpoint, state, out = sys.argv[1:]
    log = open(out, "a", buffering=1)
    def write(item):
        event = item.event
        log.write(json.dumps("missed" if isinstance(event, Missed) else event.job_id) + "\\n")
    b = Backplane.open(BackplaneConfig(name="reader", connect=(endpoint,)))
    b.subscribe("JobStarted", write, durable="reader", state_dir=Path(state))
    print("ready", flush=True)
    threading.Event().wait()
    """
)


@pytest.fixture
def router(unix_endpoint: str) -> Iterator[Backplane]:
    with Backplane.open(BackplaneConfig(name="router", listen=(unix_endpoint,))) as backplane:
        yield backplane


@contextmanager
def _reader(endpoint: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", READER, endpoint, str(tmp_path / "state"), str(tmp_path / "got")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _got(tmp_path: Path) -> list[str]:
    path = tmp_path / "got"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _wait_for(tmp_path: Path, job_id: str) -> list[str]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if job_id in (found := _got(tmp_path)):
            return found
        time.sleep(0.02)
    pytest.fail(f"{job_id} never came; got {_got(tmp_path)[-5:]}")


def _publish(publisher: Backplane, first: int, last: int) -> None:
    for number in range(first, last):
        publisher.publish(JobStarted(job_id=str(number), nodes=("c1",)))


def _each_once(found: list[str], count: int) -> None:
    # One whose callback had returned but whose place was not yet written may come a second time.
    unique = list(dict.fromkeys(found))
    assert unique == [str(number) for number in range(count)]
    assert len(found) - len(unique) <= 1


def test_after_kill_9_it_gets_what_it_missed(router: Backplane, unix_endpoint: str, tmp_path: Path) -> None:
    with Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher:
        with _reader(unix_endpoint, tmp_path) as reader:
            _publish(publisher, 0, 50)
            _wait_for(tmp_path, "49")
            reader.kill()
        _publish(publisher, 50, 100)
        with _reader(unix_endpoint, tmp_path):
            _publish(publisher, 100, 150)
            _each_once(_wait_for(tmp_path, "149"), 150)


def test_after_kill_9_in_a_stream_it_gets_all(router: Backplane, unix_endpoint: str, tmp_path: Path) -> None:
    with Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher:
        with _reader(unix_endpoint, tmp_path) as reader:
            _publish(publisher, 0, 100)
            _wait_for(tmp_path, "10")
            reader.kill()
            _publish(publisher, 100, 200)
        with _reader(unix_endpoint, tmp_path):
            _each_once(_wait_for(tmp_path, "199"), 200)


def test_a_frozen_subscriber_fails_nobodys_confirmation_and_gets_all_when_it_goes_on(
    router: Backplane, unix_endpoint: str, tmp_path: Path
) -> None:
    wide = tuple(f"node{number:05d}" for number in range(400))  # the sockets' buffers hold some 50 of these
    with (
        GlobalController(load_policy("null"), [], router, tmp_path / "controller"),
        Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher,
        _reader(unix_endpoint, tmp_path) as reader,
    ):
        numbers = itertools.count()

        def all_are_confirmed() -> bool:
            """Each in less time than Zenoh's own 5 s, for which all would wait for a frozen reader."""
            first = next(numbers)
            _publish(publisher, first, first + 1)
            _wait_for(tmp_path, str(first))  # it is connected, again
            halt(reader.pid)
            try:
                for number in itertools.islice(numbers, 150):
                    started = JobStarted(job_id=str(number), nodes=wide)
                    publisher.publish(started, confirm=True, timeout=4.0)
            except NotConfirmed:
                return False
            finally:
                reader.send_signal(signal.SIGCONT)
            return True

        # A busy disk may be as late: not each time.
        assert any(all_are_confirmed() for _ in range(5))
        count = next(numbers)
        _each_once(_wait_for(tmp_path, str(count - 1)), count)


def test_events_of_a_publisher_that_is_gone_come_from_the_controllers_journal(
    router: Backplane, unix_endpoint: str, tmp_path: Path
) -> None:
    with GlobalController(load_policy("null"), [], router, tmp_path / "controller"):
        with Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher:
            with _reader(unix_endpoint, tmp_path) as reader:
                _publish(publisher, 0, 10)
                _wait_for(tmp_path, "9")
                reader.kill()
            _publish(publisher, 10, 20)
            publisher.publish(JobFinished(job_id="0"), confirm=True, timeout=WAIT_S)
        with _reader(unix_endpoint, tmp_path):
            _each_once(_wait_for(tmp_path, "19"), 20)


def test_a_journal_that_has_not_yet_what_the_publisher_holds_makes_no_event_lost(
    router: Backplane, unix_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the router: an event arrives before its publisher can be asked for those before it."""
    ask, asked = router._replay_from, list[str]()

    def late(key: str, source: str, request: ReplayRequest) -> object:
        asked.append(key)
        return None if len(asked) == 1 else ask(key, source, request)

    def answer(key: str, payload: bytes, attachment: bytes, reply: wire.Reply) -> None:
        wire.send_replay(reply, key, [], ReplayEnd())

    router.answer(f"{keys.JOURNAL}/*/*", answer)
    with Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher:
        with router.subscribe("JobStarted", durable="reader", state_dir=tmp_path) as subscription:
            _publish(publisher, 0, 1)
            items = [subscription.get(WAIT_S)]
            wait_until(lambda: publisher.stats.replays_answered > 0, what="the replay at its start")
            wait_until(lambda: subscription._inbox._sources[publisher.source].held is None)
            offer = subscription.offer

            def lossy(*arrivals: Arrival) -> None:
                offer(*(each for each in arrivals if each.envelope.seq != 2))

            monkeypatch.setattr(subscription, "offer", lossy)
            monkeypatch.setattr(router, "_replay_from", late)
            _publish(publisher, 1, 3)
            items += [subscription.get(WAIT_S) for _ in range(2)]
    assert [item.event.job_id for item in items] == ["0", "1", "2"]  # type: ignore[union-attr]
    assert asked[1].startswith(keys.JOURNAL)


def test_a_subscriber_that_missed_too_much_takes_a_snapshot(
    router: Backplane, unix_endpoint: str, tmp_path: Path
) -> None:
    with (
        GlobalController(load_policy("null"), [], router, tmp_path / "controller"),
        Backplane.open(
            BackplaneConfig(name="publisher", connect=(unix_endpoint,), cache_events=5)
        ) as publisher,
    ):
        with _reader(unix_endpoint, tmp_path) as reader:
            # No more than the cache holds: the publisher may hear of the reader only after its first events.
            _publish(publisher, 0, 5)
            before = _wait_for(tmp_path, "4")
            reader.kill()
        for number in range(5, 100):
            # The controller, whose connection may drop events too, misses none that it has to confirm.
            publisher.publish(JobStarted(job_id=str(number), nodes=()), confirm=True, timeout=WAIT_S)
        with _reader(unix_endpoint, tmp_path):
            found = _wait_for(tmp_path, "99")
        assert before == ["0", "1", "2", "3", "4"]
        assert found[5:] == ["missed", "95", "96", "97", "98", "99"]
        snapshot = publisher.snapshot()
        assert snapshot.events == 100
        assert snapshot.cursors[publisher.source] == {"JobStarted": 100}


def test_a_durable_subscriber_starts_where_it_was_first_made(
    router: Backplane, unix_endpoint: str, tmp_path: Path
) -> None:
    with Backplane.open(BackplaneConfig(name="publisher", connect=(unix_endpoint,))) as publisher:
        before = router.subscribe("JobStarted")
        _publish(publisher, 0, 5)
        wait_until(lambda: before.stats.received == 5, what="the events at the router")
        with router.subscribe("JobStarted", durable="late", state_dir=tmp_path) as late:
            assert late.get(0.5) is None, "what was published before it existed is not its business"
        _publish(publisher, 5, 8)
        with router.subscribe("JobStarted", durable="late", state_dir=tmp_path) as late:
            items = [late.get(WAIT_S) for _ in range(3)]
        assert [item.event.job_id for item in items] == ["5", "6", "7"]  # type: ignore[union-attr]


def test_a_gap_is_repaired_before_publishers_that_may_have_missed_nothing(tmp_path: Path) -> None:
    """A subscriber that knows very many publishers asks for each of them when it starts."""
    asked: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def replay(self, source: str, types: object, request: object, journal: bool) -> Replayed:
            asked.append(source)
            begun.set()
            assert go_on.wait(WAIT_S)
            return Replayed([], ReplayEnd(), whole=True)

        def closed(self, subscription: Subscription) -> None:
            return None

    known = FileCursors(tmp_path, "known")
    known.save([("a", "JobFinished", 1)])
    with Subscription(Slow(), Wanted(None), capacity=10, cursors=known) as subscription:
        for source in ("gone-1", "gone-2", "gone-3"):
            subscription.recover(source)
        assert begun.wait(WAIT_S)
        item = Envelope(event=JobFinished(job_id="j"), event_id="e", source="a", seq=3, time_ns=1)
        subscription.offer(Arrival(item, "JobFinished", 2))
        go_on.set()
        assert subscription.get(WAIT_S) is not None
        assert asked[1] == "a"


def test_a_durable_name_needs_a_place_and_must_be_a_name(router: Backplane, tmp_path: Path) -> None:
    with pytest.raises(BackplaneError, match="state_dir"):
        router.subscribe("JobStarted", durable="x")
    with pytest.raises(BackplaneError, match="durable name"):
        router.subscribe("JobStarted", durable="../x", state_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BackplaneError, match="cannot keep the place"):
        router.subscribe("JobStarted", durable="x", state_dir=tmp_path / "file")


def test_missed_does_not_travel(router: Backplane) -> None:
    with pytest.raises(EventError, match="does not travel"):
        router.publish(Missed(publisher="another"))
    data = encode(Envelope(event=Missed(publisher="another"), event_id="1", source="rogue", seq=1))
    assert router.decode_arrival("rogue", "Missed", data, b"0") is None
    assert router.stats.malformed == 1
