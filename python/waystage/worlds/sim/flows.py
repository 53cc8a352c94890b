"""Active flows on the simulated clock: their progress, and the settings they keep to.

Arrives: `Flow`s to start, settings to keep, ends of the clock's runs.
Leaves: which flow ended; progress of all.
Must not know: why a setting changes, jobs, plans.

Each leg is one run of the clock, with a stream for each loader. A rate limit is a resource of the flow's own, which
all its legs cross. Other settings change what a run is made of: it is stopped, and started with its remaining bytes.
Acknowledgements are runs beside the legs and keep to no setting.
"""

from __future__ import annotations

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

HELD = 0.999
"""A flow that moves this share of its rate limit is limited by it."""


class Routes(Protocol):
    """Keys of routes: between two hosts under the plan in force, and over further resources."""

    def acquire(self, leg: Leg, flow: Flow, extra: Sequence[int], *, back: bool) -> int: ...

    def release(self, key: int) -> None: ...


class _Moving(msgspec.Struct):
    """A leg of the piece in progress: bytes on the wire that it had at its last start, and its run, if it has one."""

    leg: Leg
    left: float
    index: int = 0
    run: int = -1
    key: int = -1
    since_s: float = 0.0


class _Active(msgspec.Struct):
    flow: Flow
    limiter: int
    settings: FlowSettings
    later: float
    """Payload of the pieces after this one."""
    weight: float = 1.0
    piece: float = 0.0
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
        """One run has ended; True where the flow has with it."""
        number = self._owner.pop(run)
        active = self._active[number]
        if run in active.acknowledging:
            self._routes.release(active.acknowledging.pop(run))
        for moving in active.moving:
            if moving.run == run:
                moving.run, moving.left = -1, 0.0
                if active.flow.leg_ended is not None:
                    active.flow.leg_ended(moving.index)
        if active.acknowledging or any(moving.left for moving in active.moving):
            return False
        self._release(active)
        if active.later > 0:
            self._next_piece(number, waits(active.flow))
            return False
        self._forget(number)
        return True

    def adjust(self, flow_id: str, settings: FlowSettings) -> None:
        """Keep to `settings` from now on. Settings of an older version, or of a flow that has ended, change nothing."""
        number = self._by_id.get(flow_id)
        if number is None or settings.version <= self._active[number].settings.version:
            return
        active = self._active[number]
        before, active.settings = active.settings, settings
        if settings.rate_bps != before.rate_bps:
            self._clock.set_capacity(active.limiter, self._limit(active))
        runs = (before.paused, before.loaders, before.mode) != (
            settings.paused,
            settings.loaders,
            settings.mode,
        )
        if runs:
            self._measure([active])
            self._halt(active)
            self._begin(number)

    def reweigh(self, flow_id: str, weight: float) -> None:
        """Let its streams have another weight from now on; nothing happens where it has ended."""
        number = self._by_id.get(flow_id)
        if number is None or self._active[number].weight == weight:
            return
        active = self._active[number]
        active.weight = weight
        self._measure([active])
        self._halt(active)
        self._begin(number)

    def moved(self, flow_id: str) -> list[float]:
        """The share of its bytes that each leg of the piece in progress has moved; empty where it has ended."""
        number = self._by_id.get(flow_id)
        if number is None:
            return []
        active = self._active[number]
        self._measure([active])
        return [
            1 - moving.left / whole
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
        active.begins_s = self._clock.now + flow.pause_s + waits_s
        active.moving = [
            _Moving(leg, self._wire_bytes(leg, active.piece * leg.share), index)
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

    def _begin(self, number: int) -> None:
        """Start the legs with the bytes that they have left, unless the flow is paused."""
        active = self._active[number]
        if active.settings.paused:
            return
        loaders = active.settings.loaders or active.flow.loaders
        weight = active.weight * weight_of(active.settings.mode or active.flow.mode)
        for moving in active.moving:
            if moving.left <= 0 and active.flow.bytes:
                continue
            if moving.key < 0:
                extra = [self._named[name] for name in moving.leg.resources]
                moving.key = self._routes.acquire(
                    moving.leg, active.flow, (*extra, active.limiter), back=False
                )
            moving.run = self._run(active, moving.key, moving.left / loaders, loaders, weight)
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
        whole = sum(self._wire_bytes(m.leg, active.piece * m.leg.share) for m in active.moving)
        left = sum(moving.left for moving in active.moving)
        begun = active.flow.bytes - active.later
        return begun - active.piece * (left / whole if whole else 0.0)

    def _wire_bytes(self, leg: Leg, payload: float) -> float:
        return payload if leg.source == leg.target else float(self._wire.data(payload, 1.0))

    def _limit(self, active: _Active) -> float:
        """The capacity of the flow's own resource: the rate limit, of payload, as bytes a second on the wire."""
        rate = active.settings.rate_bps
        if rate is None:
            return UNLIMITED
        whole = sum(self._wire_bytes(leg, active.piece * leg.share) for leg in active.flow.legs)
        return max(0.0, rate / 8 * (whole / active.piece if active.piece else 1.0))

    def _limited_by(self, active: _Active, rate: float) -> str:
        if active.settings.paused:
            return "paused"
        limit = active.settings.rate_bps
        if limit is not None and rate >= HELD * limit:
            return "rate"
        return ""
