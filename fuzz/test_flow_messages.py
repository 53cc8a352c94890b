"""Lines of engines and of hostile clients, fed to the flow agent's decoder and to an agent.

Each is a valid message or refused with one printable sentence; nothing else is raised, and what is accepted can be
published. $WAYSTAGE_FUZZ_EXAMPLES sets the number of inputs.
"""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import events
from waystage.flows import wire

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100"))

texts = st.text(max_size=300) | st.sampled_from(["", "17", "a\nb", "\x1b[0m", "\ud800", "x" * 300, "n1:1"])
numbers = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([0, 1, 2**63 - 1, 2**63, -1])
ends = st.fixed_dictionaries(
    {}, optional={"host": texts, "peer": texts, "targets": st.lists(texts, max_size=5)}
)
values = texts | numbers | st.none() | st.booleans() | ends | st.lists(texts, max_size=3)

start = st.fixed_dictionaries(
    {
        "type": st.just("start"),
        "traffic": st.sampled_from(["mpi", "staging", "io", "wan", "all"]),
        "engine": texts,
    },
    optional={
        "job_id": texts | st.none(),
        "user": texts | st.none(),
        "source": ends,
        "destination": ends,
        "bytes": numbers,
        "controls": st.lists(st.sampled_from(["rate", "mode", "loaders", "pause", "fly"]), max_size=10),
        "more": values,
    },
)
progress = st.fixed_dictionaries(
    {"type": st.just("progress"), "bytes_done": numbers},
    optional={"bytes": numbers, "limited_by": texts | st.just("rate"), "version": numbers},
)
change = st.fixed_dictionaries(
    {"type": st.just("change"), "flow_id": texts},
    optional={"rate_bps": numbers | st.none(), "mode": texts, "loaders": numbers, "paused": values},
)
others = st.dictionaries(texts, values, max_size=5)
messages = start | progress | change | others


def as_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode("utf-8", "surrogatepass")


def check(line: bytes) -> None:
    try:
        message = wire.decode(line)
    except wire.WireError as error:
        assert str(error) and "\n" not in str(error)
        assert wire.refused(str(error)).isascii() or json.loads(wire.refused(str(error)))
        return
    if isinstance(message, wire.Start):
        event = events.FlowStarted(
            flow_id="n1:1",
            traffic=message.traffic,
            engine=message.engine,
            job_id=message.job_id or None,
            user=message.user or "",
            source=wire.endpoint(message.source, "n1"),
            destination=wire.endpoint(message.destination, "n1"),
            bytes=message.bytes,
            controls=message.controls,
        )
        assert events.decode(events.encode(events.envelope(event))).event == event
        for name in (message.job_id, message.engine, message.source.host, *message.destination.targets):
            assert not name or name.isprintable()


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages)
def test_every_message_is_valid_or_refused(message: dict[str, Any]) -> None:
    check(as_line(message))


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages, st.integers(0, 1 << 16), st.binary(max_size=8))
def test_damaged_lines_are_valid_or_refused(message: dict[str, Any], at: int, damage: bytes) -> None:
    line = as_line(message)
    at %= len(line)
    check(line[:at] + damage + line[at + len(damage) :])
    check(line[:at])


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_refused_or_valid(line: bytes) -> None:
    check(line)
