"""What is said of a path from what trains found, against paths whose truth is known: no socket, no clock."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waystage.wan.probing.limits import Verdict, verdict
from waystage.wan.probing.mtu import LEAST, MOST, path_mtu
from waystage.wan.probing.plot import bar, plot
from waystage.wan.probing.points import Point, point, trend, wilson
from waystage.wan.probing.sweep import Sweep, calm_of, queue_grows

PACKET = 1500
PARTS = 32


@dataclass
class Path:
    """A direction in arithmetic: a link with a buffer, or a token bucket, and loss by chance."""

    rate_bps: float
    buffer_s: float = 0.1
    loss: float = 0.0
    bucket_bytes: float | None = None
    jitter_s: float = 0.0
    sender_bps: float = math.inf

    def train(self, target_bps: float, seconds: float = 1.0, seed: int = 1) -> Point:
        """What `WanProbe.train` would have found."""
        chance = random.Random(f"{seed} {target_bps}")
        rate = min(target_bps, self.sender_bps)
        count = max(200, round(seconds * target_bps / 8 / PACKET))
        gap, service = 8 * PACKET / rate, 8 * PACKET / self.rate_bps
        free_at, tokens = 0.0, self.bucket_bytes or 0.0
        sums, counts, delays, arrivals = [0.0] * PARTS, [0] * PARTS, [], []
        for number in range(count):
            now = number * gap
            wait = 0.02
            if self.bucket_bytes is not None:
                tokens = min(self.bucket_bytes, tokens + gap * self.rate_bps / 8)
                if tokens < PACKET:
                    continue
                tokens -= PACKET
            else:
                queue = max(0.0, free_at - now)
                if queue > self.buffer_s:
                    continue
                free_at = now + queue + service
                wait += queue + service
            if chance.random() < self.loss:
                continue
            wait += chance.random() * self.jitter_s
            part = number * PARTS // count
            sums[part] += wait
            counts[part] += 1
            delays.append(wait)
            arrivals.append(now + wait)
        delays.sort()
        return point(
            {
                "sent": count,
                "refused": 0,
                "first_sent_ns": 0,
                "last_sent_ns": round((count - 1) * gap * 1e9),
                "late": 0,
                "latest_ns": 0,
                "given_up_ns": round(max(0.0, gap - 8 * PACKET / target_bps) * count * 1e9),
                "received": len(delays),
                "duplicated": 0,
                "reordered": 0,
                "reordered_by": 0,
                "damaged": 0,
                "dropped_here": 0,
                "first_received_ns": round(arrivals[0] * 1e9),
                "last_received_ns": round(max(arrivals) * 1e9),
                "bare": False,
                "delays_ns": tuple(
                    round(delays[min(len(delays) - 1, int(s * len(delays)))] * 1e9) for s in (0, 0.5, 0.99, 1)
                ),
                "parts": [
                    (n, round(s / n * 1e9) if n else 0, round(s / n * 1e9) if n else 0)
                    for n, s in zip(counts, sums, strict=True)
                ],
            },
            target_bps,
            PACKET,
            up=True,
        )

    def judged(self, most_bps: float = 1e9, start_bps: float = 1e6) -> tuple[Verdict, Sweep]:
        sweep = Sweep(start_bps=start_bps, most_bps=most_bps)
        while (rate := sweep.next()) is not None:
            assert len(sweep.points) < 30, [p.target_bps for p in sweep.points]
            sweep.add(self.train(rate))
        found = verdict(
            sweep.carried(),
            sweep.refused(),
            base_ns=min(p.least_ns for p in sweep.points),
            most_bps=most_bps,
            cap="--max-rate",
            known_loss=self.loss,
        )
        return found, sweep


LINKS = [
    (rate, buffer, loss)
    for rate in (0.7e6, 3e6, 20e6, 95e6)
    for buffer in (0.01, 0.2, 5.0)
    for loss in (0.0, 0.01, 0.1)
    # With less than a packet there is no queue.
    if rate * buffer > 8 * PACKET
]


@pytest.mark.parametrize(("rate_bps", "buffer_s", "loss"), LINKS)
def test_a_link_with_a_queue_is_found_with_its_rate(rate_bps: float, buffer_s: float, loss: float) -> None:
    found, sweep = Path(rate_bps, buffer_s, loss).judged()
    assert found.kind == "queue", found
    assert 0.94 <= found.achievable_bps / rate_bps <= 1.02, (found, [p.target_bps for p in sweep.points])
    assert found.most_queue_ns > 0.5e9 * min(buffer_s, 0.4)


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("bucket", [16_000, 250_000])
@pytest.mark.parametrize("rate_bps", [5e6, 50e6])
def test_a_policed_rate_is_distinguished_from_a_queue(rate_bps: float, bucket: float, loss: float) -> None:
    found, _ = Path(rate_bps, loss=loss, bucket_bytes=bucket).judged()
    assert found.kind == "policed", found
    assert 0.9 <= found.achievable_bps / rate_bps <= 1.05, found
    assert found.burst_bytes is not None and found.burst_bytes < 3 * bucket + rate_bps / 8 / 8


def test_the_burst_that_a_policer_allows_is_measured() -> None:
    found, _ = Path(20e6, bucket_bytes=1_000_000).judged()
    assert found.burst_bytes is not None and 0.6e6 <= found.burst_bytes <= 1.4e6, found


def test_what_carries_the_most_that_was_tried_is_not_called_a_limit() -> None:
    found, sweep = Path(10e9, loss=0.05).judged(most_bps=50e6)
    assert found.kind == "cap" and "--max-rate" in found.why
    assert found.achievable_bps == pytest.approx(50e6, rel=0.02) and len(sweep.points) <= 5


def test_a_machine_that_is_too_slow_is_not_taken_for_the_path() -> None:
    found, _ = Path(10e9, sender_bps=30e6).judged()
    assert found.kind == "machine" and "too slow" in found.why
    assert found.achievable_bps == pytest.approx(30e6, rel=0.03), found


def test_jitter_is_no_queue_and_chance_is_no_limit() -> None:
    for seed in range(40):
        for loss in (0.0, 0.001, 0.05, 0.3):
            wavering = Path(1e9, loss=loss, jitter_s=0.01).train(5e6, seed=seed)
            assert not queue_grows(wavering), (seed, loss)
    found, _ = Path(10e9, loss=0.1, jitter_s=0.005).judged(most_bps=40e6)
    assert found.kind == "cap", found


@given(st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 50)), min_size=3, max_size=40))
def test_the_trend_is_that_of_the_formula(parts: list[tuple[int, int]]) -> None:
    delays, weights = [d for d, _ in parts], [w for _, w in parts]
    slope, grown, rest = trend(delays, weights, 1_000_000)
    used = [(i, d, w) for i, (d, w) in enumerate(parts) if w]
    if len(used) < 3:
        assert (slope, grown, rest) == (0.0, 0.0, 0.0)
        return
    total = sum(w for _, _, w in used)
    x = sum(w * i for i, _, w in used) / total
    y = sum(w * d for _, d, w in used) / total
    expected = sum(w * (i - x) * (d - y) for i, d, w in used) / sum(w * (i - x) ** 2 for i, _, w in used)
    assert grown == pytest.approx(expected * len(parts), rel=1e-6, abs=1e-3)
    assert slope == pytest.approx(expected * len(parts) / 1_000_000, rel=1e-6, abs=1e-9)


@given(st.integers(0, 1000), st.integers(1, 1000))
@example(0, 225)
def test_an_interval_holds_the_share_and_is_between_none_and_all(hits: int, more: int) -> None:
    low, high = wilson(hits, hits + more)
    assert 0 <= low <= hits / (hits + more) <= high <= 1


def test_the_interval_is_wilsons() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(LEAST, MOST))
def test_the_path_mtu_is_found_with_few_questions(mtu: int) -> None:
    asked: list[int] = []

    def passes(size: int) -> bool:
        asked.append(size)
        return size <= mtu

    assert path_mtu(passes) == mtu
    assert len(asked) == len(set(asked)) <= 17
    assert mtu != 1500 or asked == [1500, 1501]


def test_a_path_that_passes_nothing_has_no_mtu() -> None:
    assert path_mtu(lambda size: False) is None


def test_the_loss_at_any_rate_is_that_of_the_lowest() -> None:
    path = Path(10e6, buffer_s=0.01, loss=0.1)
    points = [path.train(rate, seconds=4) for rate in (40e6, 1e6, 4e6)]
    assert calm_of(points).loss == pytest.approx(0.1, abs=0.03)
    assert calm_of([]).loss == 0.0


def test_the_picture_shows_each_rate_and_its_bars() -> None:
    _, sweep = Path(20e6, buffer_s=0.05).judged()
    lines = plot(sweep.points, min(p.least_ns for p in sweep.points), 100).splitlines()
    assert len(lines) == len(sweep.points) + 1
    assert all(len(line) <= 100 for line in lines) and "delivered" in lines[0]
    assert plot([], 0) == ""
    one: Any = sweep.points[:1]
    assert "█" in plot(one, 0)


@given(st.floats(-1, 2), st.integers(1, 40))
def test_a_bar_is_as_wide_as_it_is_said(share: float, width: int) -> None:
    assert len(bar(share, width)) == width
