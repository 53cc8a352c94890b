"""Active flows on the simulated clock: their progress, and the settings they keep to.

Arrives: `Flow`s to start, settings to keep, ends of the clock's runs.
Leaves: which flow ended; progress of all.
Must not know: why a setting changes, jobs, plans.

Each leg is one run of the clock, with a stream for each loader. A rate limit is a resource of the flow's own, which
all its legs cross. Other settings change what a run is made of: it is stopped, and started with its remaining bytes.
Acknowledgements are runs beside the legs and keep to no setting.

A loader that reads object by object (`object_bytes`) does not give up a read in service: with fewer loaders or a pause
every read in service ends first, at the pace of all of them, and a leg has no more streams than objects left. What is in
service is in the loaders' memory: with few large objects that, and not their number, says how many read at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from waystage._native import FlowClock, FlowProgram
from waystage.events import CLASSES, FlowSettings, FlowUse
from waystage.forecast.weights import weight_of
from waystage.worlds.sim.resources import Flow, Leg
from waystage.worlds.sim.wire import Wire

UNLIMITED = 1e17
"""Bytes a second of a flow that nothing limits: far more than any link has."""

ROUNDING = 1e-6
"""Of an object: less than this of it is none."""

HELD = 0.999
"""A flow that moves this share of its rate limit is limited by it."""


class Routes(Protocol):
    """Keys of routes: between two hosts under the plan in force, and over further resources."""

    def acquire(self, leg: Leg, flow: Flow, extra: Sequence[int], *, back: bool) -> int: ...

    def release(self, key: int) -> None: ...


class _Moving(msgspec.Struct):
    """A leg of the piece in progress. `left` are the bytes on the wire of its run, at its start or when last measured;
    `rest`, those that follow it. Its `streams` read objects of `size` bytes; 0: streams share what is left. At the
    start each had `each` bytes to read, of which `begun` of an object in service.
    """

    leg: Leg
    rest: float
    index: int = 0
    size: float = 0.0
    left: float = 0.0
    streams: int = 0
    each: float = 0.0
    begun: float = 0.0
    run: int = -1
    key: int = -1
    since_s: float = 0.0

    @property
    def remains(self) -> float:
        return self.left + self.rest

    def in_service(self) -> float:
        """Bytes that each stream has left of the object that it reads."""
        if not self.size or self.run < 0:
            return 0.0
        moved = self.each - self.left / self.streams
        if moved < ROUNDING * self.size:
            return self.begun
        left = (self.begun - moved) % self.size
        return left if ROUNDING < left / self.size < 1 - ROUNDING else 0.0


class _Active(msgspec.Struct):
    flow: Flow
    limiter: int
    settings: FlowSettings
    later: float
    """Payload of the pieces after this one."""
    weight: float = 1.0
    piece: float = 0.0
    piece_wire: float = 0.0
    """The piece in progress on the wire, all legs together."""
    moving: list[_Moving] = []
    acknowledging: dict[int, int] = {}
    """Runs of the clock, and their routes."""
    begins_s: float = 0.0
    reported: float = 0.0


class Flows:
    """`limiters` are the resources left for rate limits; `named`, the others beside links."""

    def __init__(
        self, clock: FlowClock, routes: Routes, wire: Wire, named: Mapping[str, int], limiters: Sequence[int]
    ) -> None:
        self._clock, self._routes, self._wire, self._named = clock, routes, wire, named
        self._limiters = list(reversed(limiters))
        self._active: dict[int, _Active] = {}
        self._by_id: dict[str, int] = {}
        self._owner: dict[int, int] = {}
        self._to_share: set[int] = set()
        """Flows with a leg that has ended, whose part of the memory is for the others."""
        self._reported_s = 0.0

    def start(self, number: int, flow: Flow, waits: Callable[[Flow], float]) -> None:
        """`waits` says how long a piece that begins now waits behind queues."""
        self._active[number] = _Active(
            flow=flow,
            limiter=self._limiters.pop(),
            settings=FlowSettings(),
            later=float(flow.bytes),
            weight=flow.weight,
        )
        self._by_id[flow.flow_id] = number
        self._next_piece(number, waits(flow))

    def stop(self, number: int) -> float:
        """End it now; the payload that it has moved."""
        active = self._active[number]
        self._measure([active])
        done = self._done(active)
        self._halt(active)
        for run, key in active.acknowledging.items():
            self._clock.cancel(run)
            self._routes.release(key)
            del self._owner[run]
        self._forget(number)
        return done

    def owner(self, run: int) -> int | None:
        """The flow that a run of the clock belongs to."""
        return self._owner.get(run)

    def ended(self, run: int, waits: Callable[[Flow], float]) -> bool:
        """One run has ended; True where the flow has with it. `share_memory` follows when all ends of a moment are known."""
        number = self._owner.pop(run)
        active = self._active[number]
        if run in active.acknowledging:
            self._routes.release(active.acknowledging.pop(run))
        leg_ended = False
        for moving in active.moving:
            if moving.run == run:
                moving.run, moving.left = -1, 0.0
                leg_ended = not moving.rest
                if moving.rest and not active.settings.paused:
                    self._read_on(number, moving)
                elif leg_ended and active.flow.leg_ended is not None:
                    active.flow.leg_ended(moving.index)
        if active.acknowledging or any(moving.remains for moving in active.moving):
            if leg_ended and active.flow.memory_bytes:
                self._to_share.add(number)
            return False
        self._release(active)
        if active.later > 0:
            self._next_piece(number, waits(active.flow))
            return False
        self._forget(number)
        return True

    def share_memory(self) -> None:
        """Let the legs that read on have the memory of those that have ended."""
        for number in sorted(self._to_share & self._active.keys()):
            self._start_anew(number)
        self._to_share.clear()

    def adjust(self, flow_id: str, settings: FlowSettings) -> None:
        """Keep to `settings` from now on. Settings of an older version, or of a flow that has ended, change nothing."""
        number = self._by_id.get(flow_id)
        if number is None or settings.version <= self._active[number].settings.version:
            return
        active = self._active[number]
        before, active.settings = active.settings, settings
        loaders = (before.loaders or active.flow.loaders) != (settings.loaders or active.flow.loaders)
        if settings.rate_bps != before.rate_bps:
            self._clock.set_capacity(active.limiter, self._limit(active))
        if loaders or (before.paused, before.mode) != (settings.paused, settings.mode):
            self._start_anew(number)

    def reweigh(self, flow_id: str, weight: float) -> None:
        """Let its streams have another weight from now on; nothing happens where it has ended."""
        number = self._by_id.get(flow_id)
        if number is None or self._active[number].weight == weight:
            return
        active = self._active[number]
        active.weight = weight
        self._start_anew(number)

    def moved(self, flow_id: str) -> list[float]:
        """The share of its bytes that each leg of the piece in progress has moved; empty where it has ended."""
        number = self._by_id.get(flow_id)
        if number is None:
            return []
        active = self._active[number]
        self._measure([active])
        return [
            1 - moving.remains / whole
            if (whole := self._wire_bytes(moving.leg, active.piece * moving.leg.share))
            else 1.0
            for moving in active.moving
        ]

    def progress(self) -> tuple[FlowUse, ...]:
        """Of every active flow, with rates since the last call."""
        passed_s = self._clock.now - self._reported_s
        if not self._active or passed_s <= 0:
            return ()
        self._reported_s = self._clock.now
        self._measure(self._active.values())
        found = []
        for active in self._active.values():
            done = self._done(active)
            rate = max(0.0, (done - active.reported) * 8 / passed_s)
            active.reported = done
            found.append(
                FlowUse(
                    flow_id=active.flow.flow_id,
                    bytes_done=round(done),
                    bytes=active.flow.bytes,
                    rate_bps=round(rate),
                    limited_by=self._limited_by(active, rate),
                    version=active.settings.version,
                )
            )
        return tuple(found)

    # -- pieces and runs ---------------------------------------------------------------------------------

    def _next_piece(self, number: int, waits_s: float) -> None:
        active = self._active[number]
        flow = active.flow
        active.piece = min(active.later, float(flow.piece_bytes or flow.bytes))
        active.later -= active.piece
        active.piece_wire = sum(self._wire_bytes(leg, active.piece * leg.share) for leg in flow.legs)
        active.begins_s = self._clock.now + flow.pause_s + waits_s
        active.moving = [
            self._leg(flow, index, active.piece * leg.share)
            for index, leg in enumerate(flow.legs)
            if leg.share > 0
        ]
        self._clock.set_capacity(active.limiter, self._limit(active))
        self._begin(number)
        for moving in active.moving:
            if moving.leg.source != moving.leg.target:
                back = self._wire.acknowledgements(active.piece * moving.leg.share, 1.0)
                key = self._routes.acquire(moving.leg, flow, (), back=True)
                run = self._run(active, key, back, 1, 1.0)
                active.acknowledging[run] = key
                self._owner[run] = number

    def _start_anew(self, number: int) -> None:
        """Stop the runs, and start them with what they have left under the settings and weight of now."""
        active = self._active[number]
        self._measure([active])
        serving = [moving.in_service() for moving in active.moving]
        self._halt(active)
        self._drain(number, serving)
        self._begin(number)

    def _leg(self, flow: Flow, index: int, payload: float) -> _Moving:
        leg = flow.legs[index]
        whole = self._wire_bytes(leg, payload)
        objects = max(1, math.ceil(payload / flow.object_bytes - ROUNDING)) if flow.object_bytes else 0
        return _Moving(leg, whole, index, whole / objects if objects else 0.0)

    def _begin(self, number: int) -> None:
        """Start the legs with the bytes that they have left, unless the flow is paused."""
        active = self._active[number]
        if active.settings.paused:
            return
        for moving in active.moving:
            if moving.run < 0 and (moving.rest > 0 or not active.flow.bytes):
                self._read_on(number, moving)

    def _read_on(self, number: int, moving: _Moving) -> None:
        """Start what a leg reads next: whole rounds of its loaders, and last a round of fewer."""
        active = self._active[number]
        streams = self._allowed(active, moving)
        size = moving.rest
        if moving.size:
            objects = max(1, round(moving.rest / moving.size))
            streams = min(streams, objects)
            size = moving.rest * (objects // streams * streams) / objects
        self._stream(number, moving, streams, size)

    def _allowed(self, active: _Active, moving: _Moving) -> int:
        """How many streams of a leg may read at once: its loaders, and no more than its part of the memory. Legs that have
        something left share the memory equally."""
        loaders = active.settings.loaders or active.flow.loaders
        if not active.flow.memory_bytes or not active.flow.object_bytes:
            return loaders
        fits = active.flow.memory_bytes // active.flow.object_bytes
        sharing = [other.index for other in active.moving if other.remains > 0 or other is moving]
        least, more = divmod(fits, len(sharing))
        return min(loaders, max(1, least + (sharing.index(moving.index) < more)))

    def _drain(self, number: int, serving: Sequence[float]) -> None:
        """Unless loaders are added, each first ends its read in service, of which `serving` bytes are left."""
        active = self._active[number]
        for moving, size in zip(active.moving, serving, strict=True):
            allowed = 0 if active.settings.paused else self._allowed(active, moving)
            if size and moving.streams >= allowed:
                self._stream(number, moving, moving.streams, min(moving.rest, size * moving.streams), size)

    def _stream(self, number: int, moving: _Moving, streams: int, size: float, begun: float = 0.0) -> None:
        """Start `streams` streams of a leg with `size` of its bytes; each is within an object with `begun` left."""
        active = self._active[number]
        if moving.key < 0:
            extra = [self._named[name] for name in moving.leg.resources]
            moving.key = self._routes.acquire(moving.leg, active.flow, (*extra, active.limiter), back=False)
        weight = active.weight * weight_of(active.settings.mode or active.flow.mode)
        if moving.rest - size <= ROUNDING * moving.size:
            size = moving.rest
        moving.streams, moving.left, moving.rest = streams, size, max(0.0, moving.rest - size)
        moving.each, moving.begun = size / streams, begun
        moving.run = self._run(active, moving.key, moving.each, streams, weight)
        moving.since_s = max(active.begins_s, self._clock.now)
        self._owner[moving.run] = number

    def _run(self, active: _Active, key: int, size: float, copies: int, weight: float) -> int:
        program = FlowProgram()
        program.step(max(0.0, active.begins_s - self._clock.now))
        routes, sizes = np.full(copies, key, dtype=np.uint32), np.full(copies, size)
        program.flows(routes, sizes, flow_class=CLASSES.index(active.flow.traffic), weight=weight)
        return self._clock.start(program)

    def _halt(self, active: _Active) -> None:
        for moving in active.moving:
            if moving.run >= 0:
                self._clock.cancel(moving.run)
                del self._owner[moving.run]
                moving.run = -1
                moving.left, moving.rest = 0.0, moving.remains

    def _release(self, active: _Active) -> None:
        for moving in active.moving:
            if moving.key >= 0:
                self._routes.release(moving.key)
                moving.key = -1

    def _forget(self, number: int) -> None:
        active = self._active.pop(number)
        self._release(active)
        self._limiters.append(active.limiter)
        del self._by_id[active.flow.flow_id]

    # -- counts ------------------------------------------------------------------------------------------

    def _measure(self, flows: Iterable[_Active]) -> None:
        """Bring `left` of every leg up to date. A run that begins in this moment has no flow on the clock yet."""
        now = self._clock.now
        legs = [m for active in flows for m in active.moving if m.run >= 0 and now > m.since_s]
        if legs:
            left = self._clock.left(np.array([moving.run for moving in legs], dtype=np.uint32))
            for moving, bytes_left in zip(legs, left.tolist(), strict=True):
                moving.left = bytes_left

    def _done(self, active: _Active) -> float:
        """Payload moved, as of the last measurement."""
        left = 0.0
        for moving in active.moving:
            left += moving.left + moving.rest
        begun = active.flow.bytes - active.later
        return begun - active.piece * (left / active.piece_wire if active.piece_wire else 0.0)

    def _wire_bytes(self, leg: Leg, payload: float) -> float:
        return payload if leg.source == leg.target else float(self._wire.data(payload, 1.0))

    def _limit(self, active: _Active) -> float:
        """The capacity of the flow's own resource: the rate limit, of payload, as bytes a second on the wire."""
        rate = active.settings.rate_bps
        if rate is None:
            return UNLIMITED
        return max(0.0, rate / 8 * (active.piece_wire / active.piece if active.piece else 1.0))

    def _limited_by(self, active: _Active, rate: float) -> str:
        if active.settings.paused:
            return "paused"
        limit = active.settings.rate_bps
        if limit is not None and rate >= HELD * limit:
            return "rate"
        return ""
