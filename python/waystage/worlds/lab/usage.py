"""The use of the lab's links over time: what passed by the kernel's count, and its classes by the controller's.

Arrives: a lab; readings of its counters; `LinkUse` events where a controller runs.
Leaves: one row for each direction of each link.
Must not know: terminals.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError, Subscription
from waystage.events import CLASSES, LinkUse, TrafficClass
from waystage.worlds.lab.counters import Direction, Reading

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

_CONNECT_TIMEOUT_S = 1.0
_FIRST_USE_S = 1.5


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """`by_class` is in bit/s, of the controller's last interval; empty where no controller counts."""

    seconds: float
    reading: Reading
    rates: dict[tuple[str, int], float]
    by_class: dict[tuple[str, int], dict[TrafficClass, float]]

    def rows(self) -> list[dict[str, Any]]:
        """For people: Mbit/s, one row a direction."""
        rows = []
        for link in self.reading.links:
            for end in link.directions:
                key = (end.node, end.port)
                classes = self.by_class.get(key, {})
                rows.append(
                    {"from": f"{end.node}:{end.port}", "to": end.peer}
                    | {"Mbit/s": _megabits(self.rates[key]), "of": _megabits(link.capacity_bps)}
                    | {c: _megabits(classes[c]) if c in classes else "" for c in CLASSES}
                    | {"queue": end.queue_drops, "cpu": end.cpu_drops, "state": "up" if link.up else "down"}
                )
        return rows

    def as_json(self) -> dict[str, Any]:
        """For programs: bit/s, links with both directions."""

        def direction(end: Direction) -> dict[str, Any]:
            key = (end.node, end.port)
            return msgspec.structs.asdict(end) | {
                "rate_bps": round(self.rates[key]),
                "by_class_bps": {c: round(v) for c, v in self.by_class.get(key, {}).items()},
            }

        return {
            "seconds": round(self.seconds, 3),
            "links": [
                {"link": link.name, "capacity_bps": link.capacity_bps, "up": link.up}
                | {"directions": [direction(end) for end in link.directions]}
                for link in self.reading.links
            ],
        }


class LinkWatch:
    """A context manager; `next` measures once. Works without a controller, then without classes."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._backplane: Backplane | None = None
        self._uses: Subscription | None = None
        self._by_class: dict[tuple[str, int], dict[TrafficClass, float]] = {}

    def next(self, seconds: float) -> Use:
        """Measure for `seconds`. Raises LabError where the lab is gone."""
        before = self._lab.links()
        time.sleep(seconds)
        after = self._lab.links()
        self._take_classes()
        return Use(
            seconds=(after.time_ns - before.time_ns) / 1e9,
            reading=after,
            rates=after.rates(before),
            by_class=self._by_class,
        )

    def __enter__(self) -> LinkWatch:
        # The controller's socket is there only while one runs.
        if (self._lab.run_dir / "backplane.sock").exists():
            config = BackplaneConfig(
                connect=(self._lab.backplane_endpoint,), connect_timeout_s=_CONNECT_TIMEOUT_S
            )
            try:
                self._backplane = Backplane.open(config)
                self._uses = self._backplane.subscribe({"type": "LinkUse"})
            except BackplaneError:
                self._backplane = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._backplane is not None:
            self._backplane.close()

    def _take_classes(self) -> None:
        # The first event is waited for: it is at most one of the controller's intervals away.
        wait = 0.0 if self._by_class else _FIRST_USE_S
        while self._uses is not None and (arrived := self._uses.get(timeout=wait)) is not None:
            wait = 0.0
            event = arrived.event
            if isinstance(event, LinkUse) and event.interval_ns > 0:
                scale = 8e9 / event.interval_ns
                self._by_class = {
                    (p.node, p.port): {c: n * scale for c, n in p.by_class.items()} for p in event.ports
                }


def _megabits(bits: float) -> float:
    return round(bits / 1e6, 3)
