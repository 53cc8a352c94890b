"""What a path is like: its file, its options, and both as one thing.

Arrives: a YAML file or the name of a shipped one; options of a command line.
Leaves: `Profile`; what each direction is as the native part takes it.
Must not know: namespaces, processes, sockets.

A file and a command line say the same things in the same words, and are read by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystage.experiment import documents
from waystage.experiment.problems import ExperimentError, Key, Problem
from waystage.experiment.schema import Name, Part
from waystage.experiment.units import parse_bytes
from waystage.worlds.lab.wan import units

Way = Literal["forward", "back"]
"""From left to right (or from a relay's clients to its target), and the other way."""

WAYS: tuple[Way, Way] = ("forward", "back")

LEAST_DEFAULT_BUFFER = 150_000
"""Where no buffer is given it is 1 BDP, and at least a hundred packets: a path without delay still has a queue."""

LEAST_TICK_NS, MOST_TICK_NS = 100_000, 500_000
"""Packets come and leave up to a tick later each: at most 2 % of a delay of 5 ms or more. At 1 Gbit/s a tick of 100 us costs twice the
processor time of one of 300 us."""

LARGEST_PACKET = 65_535
_KEYS = "name, description, seed, tick, late, memory, both, forward, back"


class Bursts(Part, frozen=True, kw_only=True):
    """Gilbert and Elliott: packet by packet, how likely a good spell ends, a bad one ends, and loss in a bad one."""

    begin: float
    end: float
    loss: float = 1.0


class Reorder(Part, frozen=True, kw_only=True):
    """The share of packets that are kept back, and for how many nanoseconds."""

    share: float
    by: int


class Direction(Part, frozen=True, kw_only=True):
    """One direction; None where nothing was said. Bits a second, nanoseconds, shares from 0 to 1.

    `buffer`, `policer`, `aqm` and `ecn` are as the functions of those names in `units` return them.
    """

    rate: float | None = None
    delay: int | None = None
    jitter: int | None = None
    buffer: tuple[int | None, float | None] | None = None
    policer: tuple[float, int] | None = None
    aqm: tuple[str, float, float] | None = None
    ecn: tuple[bool, tuple[int | None, float | None] | None] | None = None
    loss: float | None = None
    bursts: Bursts | None = None
    reorder: Reorder | None = None
    duplicate: float | None = None
    corrupt: float | None = None
    mtu: Annotated[int, Meta(ge=68, le=LARGEST_PACKET)] | None = None

    def over(self, other: Direction) -> Direction:
        """What this says, and where it says nothing what `other` says."""
        mine = {f: getattr(self, f) for f in self.__struct_fields__ if getattr(self, f) is not None}
        return msgspec.structs.replace(other, **mine)


class Profile(Part, frozen=True, kw_only=True):
    """A path. `both` holds for the directions that say nothing else."""

    name: Name = "path"
    description: str = ""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    tick: Annotated[int, Meta(ge=1_000, le=100_000_000)] | None = None
    late: Annotated[int, Meta(ge=1_000, le=10**9)] = 1_000_000
    memory: Annotated[int, Meta(ge=4 << 20, le=1 << 40)] = 1 << 30
    both: Direction = Direction()
    forward: Direction = Direction()
    back: Direction = Direction()

    def direction(self, way: Way) -> Direction:
        """Everything that was said about one direction."""
        return (self.forward if way == "forward" else self.back).over(self.both)

    def changed(self, ways: tuple[Way, ...], said: Direction) -> Profile:
        """With what is said now about some directions."""
        new = {way: said.over(self.direction(way)) for way in ways}
        return msgspec.structs.replace(self, **new)

    @property
    def round_trip_ns(self) -> int:
        """Without queues, jitter and reordering."""
        return sum(self.direction(way).delay or 0 for way in WAYS)

    @property
    def tick_ns(self) -> int:
        """How often the path looks while packets come: what was said, or a fiftieth of the shorter delay, within bounds."""
        if self.tick is not None:
            return self.tick
        shortest = min(self.direction(way).delay or 0 for way in WAYS)
        return min(max(shortest // 50, LEAST_TICK_NS), MOST_TICK_NS)

    @property
    def mtu(self) -> int:
        """Of the devices at the ends: the larger of both directions'."""
        return max(self.direction(way).mtu or 1500 for way in WAYS)


def shipped() -> dict[str, str]:
    """Names of the profiles that come with Waystage, and what each is."""
    folder = files("waystage") / "data" / "wan"
    names = sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    return {name: load(name).description for name in names}


def load(source: str | Path) -> Profile:
    """A shipped profile by name, or a file. Raises ExperimentError with file, line and key."""
    folder = files("waystage") / "data" / "wan"
    ours = folder / f"{source}.yaml"
    path = (
        Path(str(ours)) if isinstance(source, str) and "/" not in source and ours.is_file() else Path(source)
    )
    if not path.exists():
        names = ", ".join(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir()))
        raise ExperimentError(f"{path}: there is no such profile file; shipped profiles: {names}")
    document = documents.read(path, "a profile", _KEYS)
    try:
        profile = documents.convert(documents.plain(document, _value), Profile)
        check(profile)
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None
    return profile


def said(options: Mapping[str, str]) -> Direction:
    """Options as `rate=100 Mbit`, named as the keys of a file. `bursts` is BEGIN,END[,LOSS] and `reorder` SHARE,BY.

    Raises Problem with the option's name.
    """
    tree: dict[str, Any] = {}
    for name, text in options.items():
        if name not in Direction.__struct_fields__:
            known = list(Direction.__struct_fields__)
            raise Problem((name,), documents.suggest("is no property of a path", name, known))
        parts = {"bursts": ("begin", "end", "loss"), "reorder": ("share", "by")}.get(name)
        if parts is None:
            tree[name] = _value((name,), int(text) if name == "mtu" and text.isdecimal() else text)
            continue
        words = [word.strip() for word in text.split(",")]
        least = 2
        if not least <= len(words) <= len(parts):
            shown = "BEGIN,END[,LOSS], such as 0.1%,5%" if name == "bursts" else "SHARE,BY, such as 25%,5ms"
            raise Problem((name,), f"{text} is not of the form {shown}")
        tree[name] = {key: _value((name, key), word) for key, word in zip(parts, words, strict=False)}
    return documents.convert(tree, Direction)


_READERS = {
    "rate": units.rate,
    "delay": units.time_ns,
    "jitter": units.time_ns,
    "by": units.time_ns,
    "tick": units.time_ns,
    "late": units.time_ns,
    "loss": units.share,
    "duplicate": units.share,
    "corrupt": units.share,
    "share": units.share,
    "begin": units.share,
    "end": units.share,
    "memory": parse_bytes,
    "buffer": units.buffer,
    "policer": units.policer,
    "aqm": units.aqm,
    "ecn": units.ecn,
}


def _value(key: Key, value: Any) -> Any:
    reader = _READERS.get(str(key[-1])) if key else None
    if reader is None or value is None:
        return value
    try:
        return reader(value)
    except ValueError as error:
        raise Problem(key, str(error)) from None


def check(profile: Profile) -> None:
    """Checks that concern several keys. Raises Problem."""
    for way in WAYS:
        direction = profile.direction(way)
        reorder = 0 if direction.reorder is None else direction.reorder.by
        if (direction.delay or 0) + (direction.jitter or 0) + reorder > units.MOST_TIME_NS:
            raise Problem((way,), "delay, jitter and reordering are more than 10 minutes together")
        marks = None if direction.ecn is None else direction.ecn[1]
        for key, queue in (("buffer", direction.buffer), ("ecn", marks)):
            if queue is not None and queue[1] is not None and direction.rate is None:
                raise Problem((way, key), "a path without a rate has no bandwidth-delay product: give a rate")
        managed = direction.ecn is not None and direction.ecn[0]
        if managed and (direction.aqm is None or direction.aqm[0] == "none"):
            raise Problem(
                (way, "ecn"), "aqm marks where RED or CoDel would drop: give aqm too, or the bytes of a queue"
            )


def buffer_bytes(profile: Profile, way: Way) -> int | None:
    """The buffer in bytes; None for no limit. A bandwidth-delay product is the rate by the round trip."""
    direction = profile.direction(way)
    if direction.rate is None or math.isinf(direction.rate):
        return None
    if direction.buffer is None:
        return max(round(_product(profile, way)), LEAST_DEFAULT_BUFFER)
    return _queue_bytes(profile, way, direction.buffer)


def mark_bytes(profile: Profile, way: Way) -> int | None:
    """The queue above which packets are marked, in bytes; None where no queue is."""
    ecn = profile.direction(way).ecn
    return None if ecn is None or ecn[1] is None else _queue_bytes(profile, way, ecn[1])


def _queue_bytes(profile: Profile, way: Way, queue: tuple[int | None, float | None]) -> int | None:
    count, products = queue
    return round(products * _product(profile, way)) if products is not None else count


def _product(profile: Profile, way: Way) -> float:
    """The bandwidth-delay product in bytes; 0 without a rate."""
    rate = profile.direction(way).rate
    return 0.0 if rate is None or math.isinf(rate) else rate / 8e9 * profile.round_trip_ns


def native(profile: Profile, way: Way) -> dict[str, Any]:
    """One direction as `_native.EmulatedPath` takes it."""
    direction = profile.direction(way)
    bursts, reorder = direction.bursts, direction.reorder
    limit, marks = buffer_bytes(profile, way), mark_bytes(profile, way)
    policer = direction.policer or (math.inf, 0)
    aqm, *thresholds = direction.aqm or ("none",)
    return {
        "rate_bps": math.inf if direction.rate is None else direction.rate,
        "delay_ns": direction.delay or 0,
        "jitter_ns": direction.jitter or 0,
        "buffer_bytes": 2**63 if limit is None else limit,
        "policer": None if math.isinf(policer[0]) else policer,
        "red": tuple(thresholds) if aqm == "red" else None,
        "codel": aqm == "codel",
        "ecn": direction.ecn is not None and direction.ecn[0],
        "mark_bytes": 2**63 if marks is None else marks,
        "loss": direction.loss or 0.0,
        "bursts": None if bursts is None else (bursts.begin, bursts.end, bursts.loss),
        "reorder": 0.0 if reorder is None else reorder.share,
        "reorder_ns": 0 if reorder is None else reorder.by,
        "duplicate": direction.duplicate or 0.0,
        "corrupt": direction.corrupt or 0.0,
        "mtu": direction.mtu or 1500,
    }


def described(profile: Profile, way: Way) -> str:
    """One direction in a line."""
    d = profile.direction(way)
    limit = buffer_bytes(profile, way)
    words = [
        units.rate_text(math.inf if d.rate is None else d.rate),
        f"delay {units.time_text(d.delay or 0)}",
    ]
    if d.jitter:
        words.append(f"jitter {units.time_text(d.jitter)}")
    if limit is not None:
        words.append(f"buffer {limit:,} bytes")
    words += _management(profile, way)
    for name in ("loss", "duplicate", "corrupt"):
        if getattr(d, name):
            words.append(f"{name} {units.share_text(getattr(d, name))}")
    if d.bursts is not None:
        b = d.bursts
        words.append("bursts " + ", ".join(units.share_text(x) for x in (b.begin, b.end, b.loss)))
    if d.reorder is not None:
        words.append(f"reorder {units.share_text(d.reorder.share)} by {units.time_text(d.reorder.by)}")
    return ", ".join([*words, f"MTU {d.mtu or 1500}"])


def _management(profile: Profile, way: Way) -> list[str]:
    d = profile.direction(way)
    words = []
    if d.policer is not None and not math.isinf(d.policer[0]):
        words.append(f"policer {units.rate_text(d.policer[0])} with {d.policer[1]:,} bytes")
    if d.aqm is not None and d.aqm[0] == "codel":
        words.append("CoDel")
    elif d.aqm is not None and d.aqm[0] == "red":
        words.append(f"RED {units.share_text(d.aqm[1])} to {units.share_text(d.aqm[2])}")
    marks = mark_bytes(profile, way)
    if marks is not None:
        words.append(f"ECN marks above {marks:,} bytes")
    elif d.ecn is not None and d.ecn[0]:
        words.append("with ECN")
    return words
