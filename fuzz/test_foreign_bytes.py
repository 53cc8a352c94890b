"""Every parser of bytes from elsewhere, fed with damaged and with random ones.

A parser gives an answer or raises the error it promises; it never raises another, hangs, or eats memory.
Damage is done to valid input, since random bytes alone never get past a parser's first lines. `make fuzz`
tries 20,000 inputs each ($WAYSTAGE_FUZZ_EXAMPLES), `make test` a hundred.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystage.backplane import wire
from waystage.backplane.config import BackplaneError, config_from, load_config
from waystage.events import (
    AssignPaths,
    EventError,
    JobStarted,
    PathPlan,
    StagingStarted,
    TopologyChanged,
    decode,
    decode_action,
    encode,
    encode_action,
    envelope,
)
from waystage.experiment import loading, results
from waystage.experiment.loading import kind_of
from waystage.experiment.problems import ExperimentError
from waystage.experiment.results import ResultError
from waystage.interconnect import arp, lldp, openflow_wire
from waystage.interconnect.graphml import format_topology, parse_topology, read_topology
from waystage.jobs.hostlist import HostlistError, expand
from waystage.patterns import KINDS, Pattern, PatternError, Traffic
from waystage.patterns import live as patterns_live
from waystage.patterns.convert import to_original
from waystage.patterns.encode import end_section, format_file, to_file
from waystage.patterns.parse import parse as parse_pattern
from waystage.topology import TopologyError

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100"))
REPOSITORY = Path(__file__).parents[1]
PAPER = read_topology("paper")
KEY = b"a key of a test"


@dataclass(frozen=True)
class Target:
    """A parser, the errors it promises, and valid input to damage."""

    parse: Callable[[bytes, Path], Any]
    promised: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def in_file(name: str, parse: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    def through_file(data: bytes, scratch: Path) -> Any:
        path = scratch / name
        path.write_bytes(data)
        return parse(path)

    return through_file


def flow_entry(match: bytes) -> bytes:
    """An entry of an OpenFlow 1.3 flow statistics reply, section A.3.5.2, with zeros for most fields."""
    return (
        (48 + len(match)).to_bytes(2, "big").ljust(44, b"\0")
        + b"\0\1"
        + len(match).to_bytes(2, "big")
        + match
    )


_SENT = Traffic.from_rows([0, 0, 1], [0, 1, 2], [1, 2, 0], [1, 23, 3], [4, 63, 0], [1, 2, 3], [8, 1 << 40, 0])
PATTERN = Pattern(
    ranks=3,
    sent=_SENT,
    received=_SENT,
    phase_edges=np.array([0.0, 1.0, 2.0]),
    nodes=("a", "b", "b"),
    kinds=KINDS,
    warnings=("one",),
    run={"program": "x"},
)


def unchecked(data: bytes) -> bytes:
    """The file with right checksums, so that damage reaches what they protect."""
    head = data[:36]
    pieces, at = [head, zlib.crc32(head).to_bytes(4, "little")], 40
    while at + 16 <= len(data):
        tag, length = data[at : at + 4], data[at + 8 : at + 16]
        content = data[at + 16 : at + 16 + int.from_bytes(length, "little")]
        pieces += [tag, zlib.crc32(tag + content).to_bytes(4, "little"), length, content]
        at += 16 + len(content)
    return b"".join(pieces)


def live(pattern: Pattern) -> bytes:
    """What rank 1 of such a run had counted when it was killed: in one table, one row."""
    head = format_file(replace(to_file(pattern), sections={}))[: -len(end_section())]
    header = patterns_live.HEADER.pack(patterns_live.MAGIC, 1, 0, 10**9, len(head), 1, b"n1")
    table_at = patterns_live.SLOTS_AT + 16 * patterns_live.SLOTS
    table = patterns_live.TABLE.pack(0, 1, 0, table_at) + np.array([1 << 6, 3, 300], np.uint64).tobytes()
    paths = np.array([table_at, 0], np.uint64).tobytes()
    data = header.ljust(patterns_live.HEAD_AT, b"\0") + head
    return (data.ljust(patterns_live.SLOTS_AT, b"\0") + paths).ljust(table_at, b"\0") + table


ENVELOPES = tuple(
    encode(envelope(event, source="host.1", seq=7))
    for event in (
        JobStarted(job_id="17", nodes=("n1", "n2")),
        StagingStarted(job_id="17", direction="out", bytes=1 << 40),
        TopologyChanged(topology=PAPER),
    )
)

TARGETS: dict[str, Target] = {
    "event": Target(lambda data, _: decode(data), (EventError,), ENVELOPES),
    "arrival": Target(lambda data, _: wire.arrival("host.1", None, data, b"3"), (EventError,), ENVELOPES),
    "action": Target(
        lambda data, _: decode_action(data),
        (EventError,),
        (bytes(encode_action(AssignPaths(plan=PathPlan(cores={"mpi": ("core1",)})))),),
    ),
    "replay request": Target(
        lambda data, _: wire.decode_request(data), (msgspec.MsgspecError,), (b'{"types": {"JobStarted": 3}}',)
    ),
    "replay answer": Target(
        lambda data, _: wire.decode_chunk(data),
        (),
        (msgspec.msgpack.encode({"items": [["JobStarted", 3, b"x"]], "end": None}),),
    ),
    "backplane configuration": Target(
        in_file("site.yaml", lambda path: config_from(load_config(path), str(path))),
        (BackplaneError,),
        (b"name: site\nlisten: [tls/127.0.0.1:7447]\nqueue: 10\ntls: {ca: a, certificate: b, key: c}\n",),
    ),
    "topology": Target(
        lambda data, _: parse_topology(data, "fuzzed.graphml"),
        (TopologyError,),
        (format_topology(PAPER).encode(),),
    ),
    "experiment": Target(
        in_file("fuzzed.yaml", loading.load),
        (ExperimentError,),
        tuple(
            path.read_bytes()
            for path in sorted((REPOSITORY / "experiments").glob("*.yaml"))
            if kind_of(path) == "policies"
        ),
    ),
    "result": Target(
        in_file(results.RESULT_FILE, lambda path: results.read(path.parent)),
        (ResultError,),
        (b'{"schema": 1, "experiment": "demo", "jobs": []}',),
    ),
    "timelines": Target(
        in_file(results.TIMELINES_FILE, lambda path: results.load_timelines(path.parent)),
        (ResultError,),
        (b"PAR1" + bytes(64) + b"PAR1",),
    ),
    "pattern": Target(
        lambda data, _: parse_pattern(data, "fuzzed", allow_missing=True),
        (PatternError,),
        (format_file(to_file(PATTERN)),),
    ),
    "pattern with right checksums": Target(
        lambda data, _: parse_pattern(unchecked(data), "fuzzed", allow_missing=True),
        (PatternError,),
        (format_file(to_file(PATTERN)),),
    ),
    "a killed rank's counters": Target(
        lambda data, _: patterns_live.parse_live(data, "fuzzed"), (PatternError,), (live(PATTERN),)
    ),
    "the original's pattern": Target(
        in_file("fuzzed.tar.gz", Pattern.read), (PatternError,), (to_original(PATTERN),)
    ),
    "host list": Target(
        lambda data, _: expand(data.decode("utf-8", "replace")),
        (HostlistError,),
        (b"n[1-4,7],m[001-003]", b"node1,node2"),
    ),
    "LLDP frame": Target(
        lambda data, _: lldp.parse(data, KEY), (), (lldp.build(dpid=1, port=2, name="edge1", key=KEY),)
    ),
    "ARP frame": Target(
        lambda data, _: arp.parse(data),
        (),
        (bytes(12) + b"\x08\x06" + bytes((0, 1, 8, 0, 6, 4, 0, 1)) + bytes(20),),
    ),
    "flow statistics": Target(
        lambda data, _: openflow_wire.flow_counts(data),
        (ValueError,),
        (flow_entry(b"\0\1\0\4\0\0\0\0") * 3,),
    ),
    "port statistics, 1.3": Target(
        lambda data, _: openflow_wire.port_counts(4, data), (ValueError,), (bytes(112) * 2,)
    ),
    "port statistics, 1.5": Target(
        lambda data, _: openflow_wire.port_counts(6, data), (ValueError,), ((b"\0\x50" + bytes(78)) * 2,)
    ),
}


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with up to four places cut out, doubled, overwritten or filled with random bytes."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 16)))
        piece = draw(
            st.one_of(
                st.just(b""),
                st.just(data[start:end] * 2),
                st.binary(max_size=8),
                st.sampled_from(
                    [b"\0", b"\xff\xff", b"[", b"{", b'"', b"-1", b"1e999", b"9" * 30, b"&a;", b"null"]
                ),
            )
        )
        data = data[:start] + piece + data[end:]
    return data


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_foreign_bytes_end_in_an_answer_or_in_the_promised_error(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, deadline=60_000, suppress_health_check=list(HealthCheck), database=None)
    @given(st.one_of(damaged(target.seeds), st.binary(max_size=300)))
    def attempt(data: bytes) -> None:
        try:
            target.parse(data, tmp_path)
        except target.promised as error:
            assert str(error).strip(), "the error says nothing"

    attempt()


@pytest.mark.parametrize(
    "name", sorted(set(TARGETS) - {"result", "timelines", "replay request", "replay answer"})
)
def test_the_seeds_themselves_are_accepted(name: str, tmp_path: Path) -> None:
    """Otherwise damage would only ever exercise the first lines of a parser."""
    for topology in (REPOSITORY / "experiments").glob("*.graphml"):
        (tmp_path / topology.name).write_bytes(topology.read_bytes())
    for seed in TARGETS[name].seeds:
        assert TARGETS[name].parse(seed, tmp_path) is not None
