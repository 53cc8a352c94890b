"""Events on the wire: what is kept, what is refused, what is ignored."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage import events
from waystage.events import (
    AssignPaths,
    Envelope,
    Event,
    EventError,
    JobStarted,
    LinkUse,
    PairPath,
    PathPlan,
    PortUse,
    StagingStarted,
    TopologyChanged,
    UnknownEvent,
)
from waystage.interconnect.generate import fat_tree


def wire(**fields: object) -> bytes:
    return json.dumps(fields).encode()


SAMPLES: list[Event] = [
    JobStarted(job_id="4711", nodes=("c1", "c2")),
    StagingStarted(job_id="größe", direction="out", bytes=10**15),
    TopologyChanged(topology=fat_tree(4)),
    LinkUse(interval_ns=10**9, ports=(PortUse(node="edge1", port=1, bytes=7, by_class={"io": 7}),)),
    UnknownEvent(type="FromTheFuture", body={"a": [1, {"b": None}]}),
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda e: type(e).__name__)
def test_an_envelope_arrives_as_it_left(event: Event) -> None:
    sent = Envelope(event=event, event_id="id", source="node-1/7", seq=3, time_ns=5)
    assert events.decode(events.encode(sent)) == sent


def test_every_declared_event_is_registered_by_its_name() -> None:
    assert events.event_type("JobStarted") is JobStarted
    assert {"JobStarted", "LinkUse", "PathsChanged", "Decided"} <= set(events.event_types())
    assert events.event_type("NoEvent") is None


def test_unknown_fields_are_ignored_and_absent_ones_take_their_defaults() -> None:
    data = wire(type="StagingStarted", id="1", hop_count=9, body={"job_id": "1", "colour": "blue"})
    assert events.decode(data).event == StagingStarted(job_id="1")


def test_a_type_or_schema_of_a_later_version_is_kept_as_it_came() -> None:
    for data in (
        wire(type="Later", body={"x": 1}),
        wire(type="JobStarted", schema=JobStarted.schema + 1, body={"x": 1}),
    ):
        kept = events.decode(data).event
        assert isinstance(kept, UnknownEvent) and kept.body == {"x": 1}


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_arbitrary_bytes_raise_event_error_only(data: bytes) -> None:
    try:
        events.decode(data)
    except EventError:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    type_name=st.sampled_from([*sorted(events.event_types()), "NoEvent", ""]),
    body=json_values
    | st.fixed_dictionaries({}, optional={"job_id": json_values, "nodes": json_values, "plan": json_values}),
    extra=st.fixed_dictionaries({}, optional={"schema": json_values, "id": json_values, "seq": json_values}),
)
def test_well_formed_json_of_any_shape_raises_event_error_only(
    type_name: str, body: object, extra: dict[str, object]
) -> None:
    data = json.dumps({"type": type_name, "body": body, **extra}, allow_nan=True).encode()
    try:
        envelope = events.decode(data)
    except EventError as error:
        assert len(str(error)) < 2000
    else:
        assert events.decode(events.encode(envelope)) == envelope


ENCODED = [
    events.encode(Envelope(event=event, event_id="id", source="s.1", seq=3, time_ns=5)) for event in SAMPLES
]

ENVELOPE = sys.modules[events.decode.__module__]


def outcome(data: bytes) -> Envelope | str:
    try:
        return events.decode(data)
    except EventError as error:
        return str(error)


@given(
    data=st.sampled_from([data for data in ENCODED if len(data) < 1000]),
    at=st.integers(0, 400),
    gone=st.integers(0, 12),
    put=st.sampled_from(
        [b"", b"}", b'"', b"\xff", b'"type":"JobFinished",', b'"schema":9,', b'"job_id":""', b"\\u0054", b"7"]
    ),
)
def test_the_quick_way_of_decoding_reads_what_the_long_way_reads(
    data: bytes, at: int, gone: int, put: bytes
) -> None:
    at = min(at, len(data))
    changed = data[:at] + put + data[at + gone :]
    quick = outcome(changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENVELOPE, "_readers", {})
        patch.setattr(ENVELOPE, "_reader", lambda name: None)
        assert outcome(changed) == quick


def test_what_is_published_is_decoded_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in ENCODED:
        events.decode(data)
    monkeypatch.setattr(ENVELOPE, "_wire_decoder", None)
    for event, data in zip(SAMPLES, ENCODED, strict=True):
        if not isinstance(event, UnknownEvent):
            assert events.decode(data).event == event


@given(st.binary(max_size=80))
def test_arbitrary_actions_raise_event_error_only(data: bytes) -> None:
    try:
        events.decode_action(data)
    except EventError:
        pass


def test_deeply_nested_bytes_are_refused() -> None:
    with pytest.raises(EventError):
        events.decode(b'{"type":"Later","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_an_oversized_message_is_refused_both_ways() -> None:
    with pytest.raises(EventError, match="at most"):
        events.decode(b" " * (events.MAX_MESSAGE_BYTES + 1))
    huge = UnknownEvent(type="Big", body={"x": "y" * events.MAX_MESSAGE_BYTES})
    with pytest.raises(EventError, match="Big is"):
        events.encode(Envelope(event=huge, event_id="1"))


@pytest.mark.parametrize(
    ("job_id", "why"),
    [
        ("", "empty"),
        ("x" * 10_240, "bytes long"),
        ("a\nb", "control"),
        ("\x1b[2J", "control"),
        ("a\x00", "control"),
    ],
)
def test_a_job_id_that_would_harm_logs_is_refused_with_a_short_message(job_id: str, why: str) -> None:
    data = wire(type="JobFinished", body={"job_id": job_id})
    with pytest.raises(EventError, match=why) as caught:
        events.decode(data)
    message = str(caught.value)
    assert len(message) < 200 and message.isprintable()


def test_a_plan_travels_inside_an_action() -> None:
    plan = PathPlan(
        style="per-pair", cores={"mpi": ("core1",)}, pairs=(PairPath(path=("a", "s", "b"), traffic="io"),)
    )
    assert events.decode_action(events.encode_action(AssignPaths(plan=plan))) == AssignPaths(plan=plan)
    with pytest.raises(EventError, match="unknown action 'Explode'"):
        events.decode_action(wire(type="Explode", body={}))


USER_CODE = """
from waystage import events
class Coffee(events.Event, frozen=True, kw_only=True):
    cups: int = 1
sent = events.envelope(Coffee(cups=3))
assert events.decode(events.encode(sent)).event == Coffee(cups=3)
try:
    class JobStarted(events.Event, frozen=True, kw_only=True):
        pass
except events.EventError as error:
    assert "choose another name" in str(error)
else:
    raise SystemExit("two events of one name")
"""


def test_users_declare_their_own_events_and_cannot_take_a_name_twice() -> None:
    """In a separate process: a declared event stays registered."""
    subprocess.run([sys.executable, "-c", USER_CODE], check=True, timeout=150)
