"""Full queues, and events that were lost on the way: fetched again, or reported as missed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import zenoh

from backplane_support import LoadSample, client, numbers, settle, started
from harness import WAIT_S, wait_until
from waystage.backplane import (
    Backplane,
    Missed,
    keys,
    wire,
)
from waystage.backplane.inbox import Arrival
from waystage.events import Envelope, JobStarted


def test_a_full_queue_loses_no_control_event(
    router: Backplane, unix_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client(unix_endpoint, "publisher") as publisher:
        subscription = router.subscribe(["JobStarted", "JobFinished"], capacity=8)
        settle(publisher, subscription)
        before = subscription.stats.deferred
        for number in range(500):
            publisher.publish(started(number))
        wait_until(lambda: subscription.stats.deferred > before, what="the queue being full")
        got: list[Envelope] = []
        while (item := subscription.get(WAIT_S if len(got) < 500 else 0.1)) is not None:
            got.append(item)
        assert numbers(got) == list(range(500))
        assert subscription.stats.missed == 0
        assert any("queue of 8 is full" in record.message for record in caplog.records)


def test_telemetry_is_dropped_and_counted_where_the_queue_is_full(alone: Backplane) -> None:
    subscription = alone.subscribe(LoadSample, capacity=4)
    for value in range(20):
        alone.publish(LoadSample(value=value))
    wait_until(lambda: subscription.stats.received >= 20)
    assert len(subscription.take(100, 1.0)) == 4
    assert subscription.stats.dropped == 16


def test_a_subscriber_that_missed_too_much_is_notified(router: Backplane, unix_endpoint: str) -> None:
    with client(unix_endpoint, "publisher", cache_events=10) as publisher:
        subscription = router.subscribe(["JobStarted", "JobFinished"], capacity=4)
        settle(publisher, subscription)
        before = subscription.stats.deferred
        for number in range(100):
            publisher.publish(started(number))
        wait_until(lambda: subscription.stats.deferred > before, what="the queue being full")
        got = []
        while (item := subscription.get(60.0)) is not None:
            got.append(item)
            if len(got) > 4 and item.seq and numbers([item]) == [99]:
                break
    events = [item.event for item in got]
    told = [event for event in events if isinstance(event, Missed)]
    assert told and told[0].publisher == publisher.source and "JobStarted" in told[0].types
    after = numbers([item for item in got if item.seq])
    assert after == sorted(after) and after[-10:] == list(range(90, 100)), "what was still held came after it"


def test_duplicates_are_delivered_once(router: Backplane, unix_endpoint: str) -> None:
    with client(unix_endpoint, "publisher") as publisher:
        subscription = router.subscribe(["JobStarted", "JobFinished"])
        settle(publisher, subscription)
        item = publisher.publish(started(1))
        first = subscription.get(WAIT_S)
        assert first is not None and first.event_id == item.event_id
        before = subscription.stats.duplicates  # what a replay repeated when the subscription was new
        for _ in range(3):
            subscription.offer(Arrival(item, "JobStarted", item.seq - 1))
        assert subscription.get(0.1) is None
        assert subscription.stats.duplicates == before + 3


def test_a_lost_event_is_fetched_again_and_put_in_order(router: Backplane, unix_endpoint: str) -> None:
    with client(unix_endpoint, "publisher") as publisher:
        subscription = router.subscribe(["JobStarted", "JobFinished"])
        settle(publisher, subscription)
        lost = {1, 2, 5}
        deliver = subscription.offer

        def lossy(item: Arrival) -> None:
            event = item.envelope.event
            if not (isinstance(event, JobStarted) and int(event.job_id) in lost):
                deliver(item)

        subscription.offer = lossy  # type: ignore[method-assign]
        for number in range(10):
            publisher.publish(started(number))
        got = [subscription.get(WAIT_S) for _ in range(10)]
        assert numbers(got) == list(range(10))  # type: ignore[arg-type]
        assert subscription.stats.gaps >= 1 and subscription.stats.missed == 0


def test_a_publisher_that_goes_while_those_present_are_asked_for_is_not_kept_as_present(
    router: Backplane, unix_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = client(unix_endpoint, "publisher")
    publisher.publish(started(1))
    ask = wire.living
    told: list[tuple[str, bool]] = []

    def late(session: zenoh.Session, key: str, timeout: float) -> list[str]:
        found = ask(session, key, timeout)
        publisher.close()
        wait_until(lambda: not ask(session, key, timeout), what="the end of the publisher")
        time.sleep(0.3)  # for a watcher that would hear of it now
        return found

    with client(unix_endpoint, "watcher") as watcher:
        wait_until(lambda: ask(watcher._session, f"{keys.ALIVE}/*", WAIT_S), what="the publisher's token")
        monkeypatch.setattr(wire, "living", late)
        watcher.watch_publishers(lambda source, present: told.append((source, present)))
        wait_until(lambda: told[-1] == (publisher.source, False), what="its being gone")
        assert told == [(publisher.source, True), (publisher.source, False)]


def test_an_event_lost_while_a_replay_is_answered_is_fetched_too(
    router: Backplane, unix_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(unix_endpoint, "publisher") as publisher:
        subscription = router.subscribe(["JobStarted", "JobFinished"])
        settle(publisher, subscription)
        deliver, replay = subscription.offer, router.replay
        arrived: list[int] = []

        def lossy(item: Arrival) -> None:
            number = int(item.envelope.event.job_id)  # type: ignore[attr-defined]
            if number not in {1, 4}:
                deliver(item)
            arrived.append(number)

        def answer(*request: object) -> object:
            wait_until(lambda: 3 in arrived)  # the test may be publishing still
            found = replay(*request)  # type: ignore[arg-type]
            for number in range(4, 7) if 4 not in arrived else ():
                publisher.publish(started(number))
            wait_until(lambda: 6 in arrived)
            return found

        subscription.offer = lossy  # type: ignore[method-assign,assignment]
        monkeypatch.setattr(router, "replay", answer)
        for number in range(4):
            publisher.publish(started(number))
        assert numbers([subscription.get(WAIT_S) for _ in range(7)]) == list(range(7))  # type: ignore[misc]
        assert subscription.stats.missed == 0


def test_events_that_died_with_their_publisher_are_reported(
    router: Backplane, unix_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystage.backplane.subscription.GIVE_UP_S", 0.2)
    subscription = router.subscribe(["JobStarted", "JobFinished"], capacity=4)
    with client(unix_endpoint, "publisher") as publisher:
        settle(publisher, subscription)
        before, received = subscription.stats.deferred, subscription.stats.received
        for number in range(20):
            publisher.publish(started(number))
        # All of them: one that came later would be given up, and reported, by itself.
        wait_until(
            lambda: subscription.stats.deferred > before and subscription.stats.received >= received + 20
        )
    got = []
    while (item := subscription.get(WAIT_S)) is not None:
        got.append(item)
        if isinstance(item.event, Missed):
            break
    assert got and isinstance(got[-1].event, Missed) and got[-1].event.publisher == publisher.source
    assert subscription.stats.missed == 1


def test_a_subscriber_starts_beside_more_publishers_than_a_channel_holds(
    router: Backplane, unix_endpoint: str
) -> None:
    """Zenoh's own reply channel holds 256; a controller that restarts finds every node agent there at once."""
    publishers = [client(unix_endpoint, f"node{n}") for n in range(300)]
    try:
        for publisher in publishers:
            publisher.publish(started(1))
        with client(unix_endpoint, "late") as late:
            subscription = late.subscribe("JobStarted")
            settle(router, late.subscribe("JobFinished"))
            publishers[-1].publish(started(2))
            item = subscription.get(WAIT_S)
            while item is not None and item.event == started(
                1
            ):  # still on its way when the subscriber started
                item = subscription.get(WAIT_S)
            assert item is not None and item.event == started(2)
    finally:
        for publisher in publishers:
            publisher.close()


def test_events_survive_a_router_that_is_killed_in_the_middle(unix_endpoint: str) -> None:
    script = (
        "import time\nfrom waystage.backplane import Backplane, BackplaneConfig\n"
        f"b = Backplane.open(BackplaneConfig(listen=({unix_endpoint!r},)))\nprint('up', flush=True)\ntime.sleep(600)\n"
    )

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    router = start()
    try:
        with client(unix_endpoint, "publisher") as publisher, client(unix_endpoint, "reader") as reader:
            subscription = reader.subscribe(["JobStarted", "JobFinished"])
            settle(publisher, subscription)
            for number in range(200):
                publisher.publish(started(number))
                if number == 50:
                    router.kill()
                    router.wait()
            router = start()  # and nothing is published after it: the broken link alone must be noticed
            got: list[Envelope] = []
            while len(got) < 200 and (item := subscription.get(WAIT_S)) is not None:
                got.append(item)
            assert numbers(got) == list(range(200))
    finally:
        router.kill()
        router.wait()
