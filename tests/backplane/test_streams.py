"""A process that mostly receives: streams of several publishers, of small and large events, arrive complete."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from harness import wait_until
from waystage.backplane import Backplane, BackplaneConfig, receiving
from waystage.events import Envelope, FlowFinished, FlowProgress, FlowUse, JobStarted


def test_a_stream_arrives_whole_and_in_order_of_each_publisher(unix_endpoint: str) -> None:
    took: list[Envelope] = []
    names = ("one", "two", "three")
    large = JobStarted(job_id="large", nodes=tuple(f"node-{n:06}" for n in range(4_000)))
    with Backplane.open(BackplaneConfig(name="router", listen=(unix_endpoint,))):
        config = BackplaneConfig(name="view", connect=(unix_endpoint,))
        with Backplane.open(config, streams=True) as view:
            events = view.subscribe(None, capacity=1 << 16, coalesce_s=0.02)
            publishers = [
                Backplane.open(BackplaneConfig(name=name, connect=(unix_endpoint,))) for name in names
            ]
            try:
                for name, publisher in zip(names, publishers, strict=True):
                    publisher.publish(JobStarted(job_id=f"{name}-first", nodes=()))
                wait_until(lambda: took.extend(events.take(9, 0.05)) or len(took) == 3)
                for n in range(700):
                    for name, publisher in zip(names, publishers, strict=True):
                        publisher.publish(JobStarted(job_id=f"{name}-{n}", nodes=("c1",)))
                        use = FlowUse(flow_id=f"{name}:{n}", bytes_done=n)
                        publisher.publish(FlowProgress(agent=name, flows=(use,)))
                        if n % 350 == 0:
                            publisher.publish(large)

                def jobs(source: str) -> list[str]:
                    return [
                        item.event.job_id
                        for item in took
                        if isinstance(item.event, JobStarted) and item.source == source
                    ]

                def whole() -> bool:
                    took.extend(events.take(1 << 16, 0.05))
                    return all(len(jobs(publisher.source)) >= 703 for publisher in publishers)

                wait_until(whole)
                for name, publisher in zip(names, publishers, strict=True):
                    expected = [f"{name}-first", *(f"{name}-{n}" for n in range(700))]
                    expected[2:2] = ["large"]
                    expected[353:353] = ["large"]
                    assert jobs(publisher.source) == expected
            finally:
                for publisher in publishers:
                    publisher.close()
    assert sum(item.event == large for item in took) == 6


def test_events_of_new_keys_that_come_while_no_sample_has_room_are_received(
    unix_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "WAITING", 8)
    take = threading.Event()
    read = Backplane.decode_arrival

    def slow(*arguments: Any, **named: Any) -> Any:
        take.wait(60)
        return read(*arguments, **named)

    with Backplane.open(BackplaneConfig(name="router", listen=(unix_endpoint,))) as router:
        config = BackplaneConfig(name="view", connect=(unix_endpoint,))
        with Backplane.open(config, streams=True) as view:
            monkeypatch.setattr(Backplane, "decode_arrival", slow)
            events = view.subscribe(None)
            for n in range(200):
                router.publish(FlowFinished(flow_id=f"agent{n}:1"))
            time.sleep(1.0)  # what there is room for has come
            take.set()
            took: list[Envelope] = []
            wait_until(lambda: took.extend(events.take(1000, 0.05)) or len(took) == 200)


def test_a_full_batch_is_followed_by_the_next_without_a_pause(monkeypatch: Any) -> None:
    """Else the pause would bound how many events a second are received."""

    class Queue:
        def __init__(self) -> None:
            self.left = 5 * receiving.BATCH + 1

        def recv(self) -> int:
            if not self.left:
                raise receiving.zenoh.ZError
            self.left -= 1
            return self.left

        def try_recv(self) -> int | None:
            return self.recv() if self.left else None

    class Subscriber:
        handler = Queue()

        def undeclare(self) -> None:
            pass

    session: Any = type("Session", (), {"declare_subscriber": lambda *_: Subscriber()})()
    pauses: list[float] = []
    # Not in the module `time` itself: threads that others left pause there too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr(receiving, "time", clock)
    batches: list[int] = []
    receiver = receiving.BatchReceiver(session, "key", lambda batch: batches.append(len(batch)), 1000.0)
    receiver._thread.join(60)
    assert batches == [receiving.BATCH] * 5 + [1] and not pauses
