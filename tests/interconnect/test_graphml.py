"""GraphML in both conventions, what is refused and in which words, and files that mean harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.interconnect.graphml import (
    format_topology,
    parse_topology,
    read_topology,
    require_storage,
    shipped_topologies,
    write_topology,
)
from waystage.topology import Host, Link, Switch, Topology, TopologyError

MILK = (
    Path(os.environ.get("WAYSTAGE_PFSIM_DATA", Path(__file__).parents[3] / "shared/data/pfsim"))
    / "milk.graphml"
)

KEYS = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="t" for="node" attr.name="typ" attr.type="string"/>
  <key id="n" for="node" attr.name="capacity" attr.type="long"/>
  <key id="r" for="node" attr.name="role" attr.type="string"/>
  <key id="m" for="node" attr.name="mac" attr.type="string"/>
  <key id="d" for="node" attr.name="dpid" attr.type="string"/>
  <key id="i" for="node" attr.name="ip" attr.type="string"/>
  <key id="c" for="edge" attr.name="capacity" attr.type="double"/>
  <key id="p" for="edge" attr.name="port" attr.type="long"/>
  <key id="s" for="edge" attr.name="source_port" attr.type="long"/>
  <key id="g" for="edge" attr.name="target_port" attr.type="long"/>
"""


def document(body: str, direction: str = "undirected") -> bytes:
    return f'{KEYS}<graph edgedefault="{direction}">\n{body}\n</graph>\n</graphml>\n'.encode()


def node(name: str, **data: object) -> str:
    return f'<node id="{name}">{values(data)}</node>'


def edge(a: str, b: str, **data: object) -> str:
    return f'<edge source="{a}" target="{b}">{values(data)}</edge>'


def values(data: dict[str, object]) -> str:
    return "".join(f'<data key="{key}">{value}</data>' for key, value in data.items())


def lines(*parts: str) -> str:
    return "\n".join(parts)


SMALL = (
    node("h1", t="host"),
    node("h2", t="host"),
    node("s1", t="switch"),
    edge("h1", "s1", c=10),
    edge("h2", "s1", c=10),
)


def read(body: str, direction: str = "undirected") -> Topology:
    return parse_topology(document(body, direction), "x.graphml")


def refusal(body: str, direction: str = "undirected") -> str:
    with pytest.raises(TopologyError) as caught:
        read(body, direction)
    message = str(caught.value)
    assert message.startswith("x.graphml"), "a message says which file"
    assert "\n" not in message
    return message


# -- what is read -----------------------------------------------------------------------------


def test_the_shipped_topologies_are_what_their_documentation_says() -> None:
    assert shipped_topologies() == ("fat-tree-4", "leaf-spine-8", "paper", "sixteen")
    paper = read_topology("paper")
    assert paper.hosts_at == {"edge1": ("c1", "c2", "c3", "storage"), "edge2": ("c4", "c5", "c6")}
    assert paper.core_switches == ("core1", "core2")
    assert paper.storage_hosts == ("storage",)
    assert {link.capacity_bps for link in paper.links} == {100_000_000}
    assert len(read_topology("leaf-spine-8").hosts) == 8
    sixteen = read_topology("sixteen")
    assert (len(sixteen.hosts), len(sixteen.storage_hosts), len(sixteen.core_switches)) == (16, 2, 4)
    fat_tree = read_topology("fat-tree-4")
    assert (len(fat_tree.hosts), len(fat_tree.switches), max(fat_tree.level.values())) == (16, 20, 2)


@pytest.mark.parametrize("name", shipped_topologies())
def test_every_shipped_topology_has_a_bottleneck_in_the_core_and_a_storage_node(name: str) -> None:
    topology = read_topology(name)
    require_storage(topology)
    for switch in topology.edge_switches:
        ends = topology.adjacency[switch]
        down = sum(k.capacity_bps for k in ends if k.other(switch) in topology.host_by_name)
        up = sum(k.capacity_bps for k in ends if k.other(switch) in topology.switch_by_name)
        assert up <= down


@pytest.mark.skipif(not MILK.exists(), reason=f"PFSim's milk.graphml is not at {MILK}")
def test_pfsim_s_own_topology_is_read() -> None:
    milk = read_topology(MILK)
    assert (len(milk.hosts), len(milk.switches), len(milk.links)) == (20, 6, 28)
    assert {host.slots for host in milk.hosts} == {8}
    assert milk.host_by_name["milk01"].mac == "00:30:48:cf:f0:39"
    assert milk.switch_by_name["core1"].dpid == 1
    assert milk.attachment["milk03"] == ("edge1", 14)
    assert milk.link_between("edge1", "core2").port_at("edge1") == 11
    assert milk.link_between("edge1", "core2").port_at("core2") == 41


def test_two_directed_edges_are_one_link_with_the_port_each_leaves_from() -> None:
    topology = read(
        lines(
            *SMALL[:3],
            edge("h1", "s1", c=10),
            edge("s1", "h1", c=10, p=7),
            edge("s1", "h2", c="0.5", p=9),
            edge("h2", "s1", c="0.5"),
        ),
        "directed",
    )
    assert topology.attachment == {"h1": ("s1", 7), "h2": ("s1", 9)}
    assert [link.capacity_bps for link in topology.links] == [10_000_000, 500_000]


def test_a_file_without_line_breaks_is_read_as_one_with() -> None:
    body = lines(*SMALL[:3], *(edge(*ends, c=1) for h in ("h1", "h2") for ends in ((h, "s1"), ("s1", h))))
    assert parse_topology(document(body, "directed").replace(b"\n", b" "), "x.graphml") == read(
        body, "directed"
    )


def test_parallel_links_stay_apart() -> None:
    topology = read(
        lines(
            node("h1", t="host"),
            node("h2", t="host"),
            node("a", t="switch"),
            node("b", t="switch"),
            *(edge(h, s, c=1) for h, s in (("h1", "a"), ("h2", "b"))),
            *(edge(h, s, c=1) for h, s in (("a", "h1"), ("b", "h2"))),
            edge("a", "b", c=1, p=5),
            edge("a", "b", c=1, p=6),
            edge("b", "a", c=1, p=8),
            edge("b", "a", c=1, p=9),
        ),
        "directed",
    )
    assert [k.name for k in topology.switch_links] == ["a:5-b:8", "a:6-b:9"]


def test_ports_that_are_not_given_are_the_smallest_free_ones_in_file_order() -> None:
    topology = read(
        lines(
            *SMALL,
            node("h3", t="host"),
            edge("s1", "h3", c=1, s=1),
            node("h4", t="host"),
            edge("h4", "s1", c=1),
        )
    )
    assert {h: port for h, (_, port) in topology.attachment.items()} == {"h1": 2, "h2": 3, "h3": 1, "h4": 4}


def test_dpids_are_read_in_any_notation_and_filled_in() -> None:
    topology = read(
        lines(
            node("h1", t="host"),
            edge("h1", "a", c=1),
            edge("a", "b", c=1),
            edge("b", "c", c=1),
            node("a", t="switch", d="0x1F"),
            node("b", t="switch", d="00:00:00:00:00:00:00:02"),
            node("c", t="switch"),
        )
    )
    assert {s.name: s.dpid for s in topology.switches} == {"a": 31, "b": 2, "c": 1}


def test_roles_addresses_and_the_graph_s_name_are_read() -> None:
    topology = read(
        lines(
            node("h1", t="host", r="storage", m="02-00-00-00-00-0A", i="10.57.0.9", n=4),
            *SMALL[1:],
        )
    )
    host = topology.host_by_name["h1"]
    assert (host.role, host.mac, host.ip, host.slots) == ("storage", "02:00:00:00:00:0a", "10.57.0.9", 4)
    assert topology.name == "x", "a graph without a name has its file's"


def test_defaults_of_keys_count() -> None:
    text = document(lines(*SMALL[:3], edge("h1", "s1"), edge("h2", "s1"))).decode()
    text = text.replace(
        'attr.name="capacity" attr.type="double"/>',
        'attr.name="capacity" attr.type="double"><default>25</default></key>',
    )
    assert {k.capacity_bps for k in parse_topology(text.encode(), "x").links} == {25_000_000}


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", ["0", "-1", "nan", "inf", "1e-9", "1e30", "fast", ""])
def test_a_capacity_that_is_no_rate_is_refused(capacity: str) -> None:
    message = refusal(lines(*SMALL[:4], edge("h2", "s1", c=capacity)))
    assert message.startswith("x.graphml:18: edge h2-s1 has the capacity")
    assert "above zero" in message


def test_a_missing_capacity_is_refused() -> None:
    assert "edge h2-s1 has no capacity: give it in Mbit/s" in refusal(lines(*SMALL[:4], edge("h2", "s1")))


def test_two_links_on_one_port_are_refused_with_both_lines() -> None:
    message = refusal(lines(*SMALL[:3], edge("h1", "s1", c=1, g=4), edge("h2", "s1", c=1, g=4)))
    assert message == (
        "x.graphml:18: edge h2-s1 uses port 4 of s1, as does edge h1-s1 in line 17: give each its own"
    )


@pytest.mark.parametrize("port", ["0", "-3", "70000", "1.5", "one"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    assert "whole number from 1 to" in refusal(lines(*SMALL[:4], edge("h2", "s1", c=1, g=port)))


def test_an_unreachable_host_is_named() -> None:
    island = lines(*SMALL, node("h3", t="host"), node("s2", t="switch"), edge("h3", "s2", c=1))
    assert "h3 cannot be reached from h1" in refusal(island)
    assert "host h3 has 0 links" in refusal(lines(*SMALL, node("h3", t="host")))


def test_an_unknown_typ_or_none_is_refused() -> None:
    assert "node r1 has the unknown typ 'router': use host or switch" in refusal(node("r1", t="router"))
    assert "node r1 has no typ" in refusal(node("r1"))


def test_directions_that_disagree_are_refused() -> None:
    pair = lines(*SMALL[:3], edge("h2", "s1", c=1), edge("s1", "h2", c=1))
    apart = lines(pair, edge("h1", "s1", c=10), edge("s1", "h1", c=20))
    assert "edge s1-h1 has another capacity than its other direction in line 19" in refusal(apart, "directed")
    assert "has no edge from s1 to h1 beside it" in refusal(lines(pair, edge("h1", "s1", c=1)), "directed")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lines(node("h1", t="host"), node("h1", t="host")), "node h1 is defined twice"),
        (lines(*SMALL, edge("h1", "s9", c=1)), "edge h1-s9 names 's9', which is no node"),
        (
            lines(*SMALL, edge("h1", "s1", c=1)),
            "edge h1-s1 is a second link of host h1, after line 17: a host has one",
        ),
        (lines(*SMALL[:3], edge("h1", "h2", c=1)), "joins two hosts"),
        (node("h1", t="host", n=0), "has capacity '0'"),
        (node("h1", t="host", r="archive"), "unknown role 'archive'"),
        (node("h1", t="host", m="02:00"), "has the mac '02:00'"),
        (node("h1", t="host", m="01:00:5e:00:00:01"), "a multicast address"),
        (node("s1", t="switch", d="zebra"), "has the dpid 'zebra'"),
        (node("s1", t="switch", d=0), "has the dpid '0'"),
        (lines(node("h1", t="host", i="10.57.0.300"), *SMALL[1:]), "is not an IPv4 address"),
        (lines(*SMALL, node("bad name", t="host")), "node name 'bad name'"),
        ("", "the graph is empty"),
        ('<hyperedge><endpoint node="h1"/></hyperedge>', "hyperedges are not supported"),
        ('<node id="n"><graph edgedefault="directed"/></node>', "more than one <graph>"),
        ('<node id="n"><data key="unheard">1</data></node>', "which no <key> declares"),
        ("<node/>", "<node> needs the attribute id"),
        (f'<node id="{"n" * 300}"/>', "of 1 to 256 printable characters"),
        (node("h1", t="x" * 70_000), "longer than 65536 characters"),
    ],
)
def test_what_else_is_refused(body: str, words: str) -> None:
    message = refusal(body)
    assert words in message
    assert len(message) < 400


def test_files_that_are_no_graphml_are_refused(tmp_path: Path) -> None:
    for data, words in (
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b"topology: paper\n", "not well-formed XML"),
        (b"<graphml><graph>", "not well-formed XML"),
        (b"<html/>", "the document is <html>, not <graphml>"),
        (b"<graphml/>", "there is no <graph>"),
        (b"\xff\xfe\x00", "not well-formed XML"),
        (b'<?xml version="1.0" encoding="klingon"?><graphml/>', "x.graphml:1: "),
    ):
        with pytest.raises(TopologyError, match=r"x\.graphml:1: ") as caught:
            parse_topology(data, "x.graphml")
        assert words in str(caught.value)
    with pytest.raises(TopologyError, match=r"No such file.*shipped topologies: fat-tree-4"):
        read_topology("papers")
    with pytest.raises(TopologyError, match=f"{tmp_path}: Is a directory"):
        read_topology(tmp_path)


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE g [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>',
        '<!DOCTYPE g [<!ENTITY f SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE g SYSTEM "http://127.0.0.1:9/g.dtd">',
    ],
)
def test_document_types_are_refused_before_they_do_anything(declaration: str) -> None:
    text = document(lines(*SMALL)).decode().replace("<graphml", f"{declaration}<graphml", 1)
    with pytest.raises(TopologyError, match="has a DOCTYPE, which is refused"):
        parse_topology(text.encode(), "x.graphml")


def test_experiments_with_staging_ask_for_a_storage_node() -> None:
    with pytest.raises(TopologyError, match="topology x has no storage node: give a host"):
        require_storage(read(lines(*SMALL)))


# -- properties -------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Trees of switches with extra links, hosts on any of them, names and ports in any order."""
    count = draw(st.integers(1, 6))
    switches = [Switch(name=f"s{i}", dpid=d) for i, d in enumerate(_distinct(draw, count, 2**64 - 1))]
    pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    pairs += draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=4))
    ends = [(f"s{a}", f"s{b}") for a, b in pairs if a != b]
    hosts = []
    for i in range(draw(st.integers(1, 6))):
        mac = f"02:00:00:00:00:{i:02x}" if draw(st.booleans()) else None
        ip = f"10.57.1.{i}" if draw(st.booleans()) else None
        role = draw(st.sampled_from(["compute", "storage"]))
        hosts.append(Host(name=f"h.{i}", role=role, slots=draw(st.integers(1, 99)), mac=mac, ip=ip))
        ends.append((f"h.{i}", f"s{draw(st.integers(0, count - 1))}"))
    ports = {s.name: iter(_distinct(draw, len(ends), 0xFEFF)) for s in switches}
    links = [
        Link(
            a=a,
            a_port=next(ports[a]) if a in ports else 1,
            b=b,
            b_port=next(ports[b]),
            capacity_bps=draw(st.integers(1, 10**15)),
        )
        for a, b in ends
    ]
    name = draw(
        st.text(st.characters(categories=("L", "N", "P"), max_codepoint=0x2FF), min_size=1, max_size=20)
    )
    return Topology.build(name, hosts, switches, links)


def _distinct(draw: st.DrawFn, count: int, high: int) -> list[int]:
    return draw(st.lists(st.integers(1, high), min_size=count, max_size=count, unique=True))


@given(topologies())
def test_what_is_written_is_read_back_equal(topology: Topology) -> None:
    assert parse_topology(format_topology(topology).encode(), "x.graphml") == topology


def test_files_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    paper = read_topology("paper")
    write_topology(paper, tmp_path / "copy.graphml")
    assert read_topology(tmp_path / "copy.graphml") == paper
    assert read_topology(str(tmp_path / "copy.graphml")) == paper


@given(st.binary(max_size=300))
def test_any_bytes_give_a_topology_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(TopologyError):
        parse_topology(data, "x.graphml")


GOOD = document(
    lines(*SMALL, node("h3", t="host", r="storage", m="02:00:00:00:00:01"), edge("h3", "s1", c="2.5"))
)


@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_worse(data: st.DataObject) -> None:
    text = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "repeat"]))
        if kind == "flip":
            text[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del text[at : at + data.draw(st.integers(1, 60))]
        else:
            text[at:at] = text[at : at + data.draw(st.integers(1, 60))]
    try:
        topology = parse_topology(bytes(text), "x.graphml")
    except TopologyError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert topology.hosts
