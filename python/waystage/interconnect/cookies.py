"""The 64-bit cookie of a rule.

Arrives: what a rule accounts for, its place on a path, and its steps.
Leaves: the cookie; the same parts read back from a switch.
Must not know: sockets, policies, which rules there are.

From the most significant bit: 8 bits magic 0x57, 4 bits kind (0 nothing, 1 received at the port, 2 sent to the port),
4 bits class (15 for none), 16 bits port, 4 bits rank, 28 bits hash of the rule's steps. The hash allows comparing a
rule read back without its steps. The rank is the number of remaining switches on the path, which orders the
installation and removal of a path.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from waystage.events import CLASSES, TrafficClass
from waystage.interconnect.rules import Field, Rule, Step

MAGIC = 0x57
MAX_RANK = 15
NO_CLASS = 15
HASH_MASK = (1 << 28) - 1

Kind = Literal["none", "rx", "tx"]
KINDS: tuple[Kind, ...] = ("none", "rx", "tx")


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed cookie."""

    kind: Kind = "none"
    traffic: TrafficClass | None = None
    port: int = 0
    rank: int = 0
    content: int = 0


def encode(cookie: Cookie) -> int:
    """The cookie as a number; a rank beyond 15 counts as 15."""
    traffic = NO_CLASS if cookie.traffic is None else CLASSES.index(cookie.traffic)
    head = MAGIC << 8 | KINDS.index(cookie.kind) << 4 | traffic
    return (head << 16 | cookie.port) << 32 | min(cookie.rank, MAX_RANK) << 28 | cookie.content & HASH_MASK


def decode(value: int) -> Cookie | None:
    """The parts; None if the cookie is not Waystage's."""
    kind, traffic = value >> 52 & 0xF, value >> 48 & 0xF
    if value >> 56 != MAGIC or kind >= len(KINDS) or not (traffic < len(CLASSES) or traffic == NO_CLASS):
        return None
    return Cookie(
        kind=KINDS[kind],
        traffic=None if traffic == NO_CLASS else CLASSES[traffic],
        port=value >> 32 & 0xFFFF,
        rank=value >> 28 & 0xF,
        content=value & HASH_MASK,
    )


def content_hash(steps: tuple[Step, ...]) -> int:
    """28 bits that are the same for the same steps in every process."""
    digest = hashlib.blake2b(msgspec.json.encode(steps), digest_size=4).digest()
    return int.from_bytes(digest, "big") & HASH_MASK


def content_of(rule: Rule) -> int:
    """The hash a rule's cookie carries, or that of its steps where the cookie is not Waystage's."""
    if rule.cookie >> 56 == MAGIC:
        return rule.cookie & HASH_MASK
    return content_hash(rule.steps)


def rank_of(rule: Rule) -> int:
    return rule.cookie >> 28 & 0xF if rule.cookie >> 56 == MAGIC else 0


def stamped(
    table: int,
    priority: int,
    match: tuple[Field, ...],
    steps: tuple[Step, ...],
    *,
    kind: Kind = "none",
    traffic: TrafficClass | None = None,
    port: int = 0,
    rank: int = 0,
) -> Rule:
    """A rule with its match sorted and its cookie set."""
    cookie = Cookie(kind=kind, traffic=traffic, port=port, rank=rank, content=content_hash(steps))
    return Rule(
        table=table, priority=priority, match=tuple(sorted(match)), steps=steps, cookie=encode(cookie)
    )
