"""Numbering, gaps and replay against a naive model: whatever is lost or doubled, each event once, in order."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from waystage.backplane.inbox import Arrival, Inbox, Verdict
from waystage.backplane.outbox import Held, Outbox, ReplayRequest
from waystage.events import Envelope, JobFinished

TYPES = "abc"


def _arrival(held: Held) -> Arrival:
    event = JobFinished(job_id=str(held.seq))
    return Arrival(Envelope(event=event, event_id="", source="s", seq=held.seq), held.type, held.previous)


def _replay(
    inbox: Inbox,
    outbox: Outbox,
    wanted: str,
    out: list[int],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[str]:
    """What a subscription does when it repairs a gap: one request for each type, then until nothing is left.

    `meanwhile` runs once, after the request of the first type was answered.
    """
    lost: list[str] = []
    again = True
    while again:
        inbox.hold("s")
        request = ReplayRequest(last=inbox.last("s"))
        items: list[Held] = []
        gone: dict[str, int] = {}
        for name in ("*",) if wanted == TYPES else wanted:
            found, end = outbox.replay(request, name)
            items += found
            gone |= end.missed
            meanwhile()
            meanwhile = int
        replayed = [_arrival(held) for held in items]
        while True:
            deliver, missing, again = inbox.next("s", replayed, gone)
            lost += missing
            out += [item.envelope.seq for item in deliver]
            if again or not deliver:
                break
            replayed, gone = [], {}
    return lost


FATES = ("arrives", "lost", "twice", "no room")


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(TYPES),
            st.sampled_from(FATES),
            st.none() | st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(FATES)), max_size=5),
        ),
        max_size=60,
    ),
    wanted=st.sets(st.sampled_from(TYPES), min_size=1).map(lambda s: "".join(sorted(s))),
)
def test_each_event_is_delivered_once_and_in_order(
    steps: list[tuple[str, str, list[tuple[str, str]] | None]], wanted: str
) -> None:
    """With each step: what is published while a replay is answered, None where none is requested."""
    whole = wanted == TYPES
    outbox, inbox = Outbox(1000, 10**6), Inbox({}, strict=True, whole=whole)
    out: list[int] = []
    expected: list[Held] = []

    def publish(name: str, fate: str) -> None:
        held = outbox.add(name, 1, b"x")
        if name not in wanted:
            return
        expected.append(held)
        for _ in range({"lost": 0, "twice": 2}.get(fate, 1)):
            if inbox.offer(_arrival(held), room=fate != "no room") is Verdict.DELIVER:
                out.append(held.seq)

    for name, fate, meanwhile in steps:
        publish(name, fate)
        if meanwhile is not None:
            lost = _replay(inbox, outbox, wanted, out, lambda m=meanwhile: [publish(*each) for each in m])  # type: ignore[misc]
            assert lost == []
    assert _replay(inbox, outbox, wanted, out) == []
    assert sorted(out) == [held.seq for held in expected], "each once"
    for group in [TYPES] if whole else wanted:
        own = [held.seq for held in expected if held.type in group]
        assert [seq for seq in out if seq in own] == own, (
            "in order: of each type, and of all where all are wanted"
        )


@given(
    sent=st.lists(st.sampled_from(TYPES), min_size=1, max_size=60),
    kept=st.integers(1, 10),
    heard=st.integers(0, 60),
    wanted=st.sets(st.sampled_from(TYPES), min_size=1).map(lambda s: "".join(sorted(s))),
)
def test_exactly_what_is_gone_is_reported(sent: list[str], kept: int, heard: int, wanted: str) -> None:
    outbox, inbox = Outbox(kept, 10**6), Inbox({}, strict=True)
    out: list[int] = []
    every = [outbox.add(name, 1, b"x") for name in sent]
    for held in every[:heard]:
        if held.type in wanted and inbox.offer(_arrival(held), room=True) is Verdict.DELIVER:
            out.append(held.seq)
    lost = _replay(inbox, outbox, wanted, out)
    unreachable = {h.type for h in every[heard:-kept] if h.type in wanted}
    assert set(lost) == unreachable
    assert out == [
        h.seq for i, h in enumerate(every) if h.type in wanted and (i < heard or i >= len(every) - kept)
    ]


def test_a_cache_is_bounded_by_bytes_and_knows_what_no_journal_has() -> None:
    outbox = Outbox(100, 1000)
    for _ in range(10):
        outbox.add("a", 1, b"x" * 100)
    assert outbox.would_evict_unacknowledged(100)
    outbox.acknowledge(1)
    assert not outbox.would_evict_unacknowledged(100)
    outbox.add("a", 1, b"x" * 100)
    assert len(outbox) == 10 and outbox.would_evict_unacknowledged(100)
    outbox.add("b", 1, b"x" * 5000)
    assert len(outbox) == 1, "one that is larger than the bound is kept until the next"
