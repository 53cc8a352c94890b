"""Peers of a backplane, and what subscriptions get."""

from __future__ import annotations

from typing import ClassVar

from harness import WAIT_S, wait_until
from waystage.backplane import Backplane, BackplaneConfig, Subscription
from waystage.events import Envelope, Event, JobFinished, JobStarted


class LoadSample(Event, frozen=True, kw_only=True):
    telemetry: ClassVar[bool] = True

    value: int


def client(endpoint: str, name: str, **options: int) -> Backplane:
    return Backplane.open(BackplaneConfig(name=name, connect=(endpoint,), **options))  # type: ignore[arg-type]


def started(number: int) -> JobStarted:
    return JobStarted(job_id=str(number), nodes=("c1",))


def numbers(items: list[Envelope]) -> list[int]:
    return [int(item.event.job_id) for item in items]  # type: ignore[attr-defined]


def take(subscription: Subscription, count: int) -> list[Envelope]:
    """`count` events, and any surplus that arrives within 0.1 s."""
    got: list[Envelope] = []
    while len(got) < count and (batch := subscription.take(count - len(got), WAIT_S)):
        got += batch
    return [*got, *subscription.take(100, 0.1)]


def settle(publisher: Backplane, subscription: Subscription) -> None:
    """A subscription takes a moment to be known across the network: publish until it is, and take what it then gets.

    It asks a publisher that appears for what it lacks, however late: only the last event says that no other follows.
    """
    sent: list[Envelope] = []
    got: list[Envelope | None] = []

    def arrives() -> bool:
        sent.append(publisher.publish(JobFinished(job_id="settle")))
        got.append(subscription.get(0.1))
        return got[-1] is not None

    def live() -> bool:
        with subscription._changed:
            asked = publisher.stats.replays_answered > 0 and not subscription._to_recover
            return asked and subscription._inbox._sources[publisher.source].held is None

    wait_until(arrives, what="an event at the subscription")
    while (item := got[-1]) is not None and item.event_id != sent[-1].event_id:
        got.append(subscription.get(WAIT_S))
    assert got[-1] is not None, "the last event never came"
    wait_until(live, what="the end of the replay")
