"""Flows in simulated time, as Python drives them."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from waystage._native import FlowClock, FlowError, FlowProgram


def _u32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def _clock(capacities: list[float], routes: list[list[int]], precision: float = 1e-9) -> FlowClock:
    clock = FlowClock(np.array(capacities), precision=precision)
    offsets = np.array([0, *itertools.accumulate(map(len, routes))], dtype=np.uint64)
    assert clock.add_routes(offsets, _u32(*itertools.chain(*routes))) == 0
    return clock


def _program(
    *steps: tuple[float, list[int], list[float]], repeat: int = 1, flow_class: int = 0
) -> FlowProgram:
    program = FlowProgram(repeat)
    for pause, routes, amounts in steps:
        program.step(pause)
        program.flows(_u32(*routes), np.array(amounts, dtype=float), flow_class=flow_class)
    return program


def test_it_stops_at_each_end_so_that_a_queue_can_react() -> None:
    clock = _clock([10.0], [[0]])
    first = clock.start(_program((0.0, [0], [50.0])))
    second = clock.start(_program((0.0, [0], [100.0])))
    assert clock.run_until() == [(10.0, first)]
    assert clock.now == 10.0
    third = clock.start(_program((1.0, [0], [20.0])))
    assert clock.run_until(12.0) == []
    assert clock.bytes_left(second) == pytest.approx(35.0)
    assert clock.run_until() == [(15.0, third)]
    assert clock.run_until() == [(17.0, second)]
    assert clock.run_until() == []
    assert clock.totals() == pytest.approx([170.0])
    assert clock.times(second) == (0.0, 17.0)


def test_moved_routes_and_classes_are_counted_where_the_bytes_went() -> None:
    clock = _clock([10.0, 5.0], [[0]])
    run = clock.start(_program((0.0, [0], [100.0]), flow_class=7))
    clock.run_until(4.0)
    clock.set_routes(_u32(0), np.array([0, 1], dtype=np.uint64), _u32(1))
    assert list(clock.route(0)) == [1]
    assert list(clock.rates()) == [0.0, 5.0]
    assert clock.any_carries(_u32(0, 1), np.array([0.1, 5.0]))
    assert not clock.any_carries(_u32(0, 1), np.array([0.1, 5.1]))
    with pytest.raises(FlowError, match="2"):
        clock.any_carries(_u32(2), np.array([0.0]))
    with pytest.raises(FlowError):
        clock.any_carries(_u32(0, 1), np.array([0.0]))
    assert list(clock.rates(7)) == [0.0, 5.0]
    assert clock.run_until() == [(16.0, run)]
    assert list(clock.totals(7)) == [40.0, 60.0]
    assert list(clock.totals()) == [0.0, 0.0]


def test_a_program_changed_after_its_start_does_not_change_the_run() -> None:
    clock = _clock([10.0], [[0]])
    program = _program((0.0, [0], [50.0]))
    run = clock.start(program)
    program.step(100.0)
    assert clock.run_until() == [(5.0, run)]


def test_the_same_calls_give_the_same_bits() -> None:
    def play() -> tuple[list[tuple[float, int]], bytes]:
        random = np.random.default_rng(3)
        clock = _clock(
            list(random.uniform(1, 9, 20)), [list(random.integers(0, 20, 4)) for _ in range(200)], 1e-3
        )
        for _ in range(60):
            routes = list(random.integers(0, 200, 30))
            clock.start(_program((float(random.random()), routes, list(random.uniform(1, 50, 30))), repeat=3))
        ends = []
        while ended := clock.run_until():
            ends += ended
        return ends, clock.totals().tobytes()

    first = play()
    assert len(first[0]) == 60
    assert play() == first


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FlowClock(np.array([1.0, np.nan])), "NaN"),
        (lambda: FlowClock(np.array([-1.0])), "capacity of -1"),
        (lambda: FlowClock(np.array([1e30])), "capacity"),
        (lambda: FlowClock(np.array([1.0]), precision=0.5), "precision of 0.5"),
        (lambda: FlowProgram(0), "at least once"),
        (lambda: FlowProgram().step(float("nan")), "pause of NaN"),
        (lambda: _program((0.0, [0], [1.0, 2.0])), "one array has 1 entries"),
        (lambda: _program((0.0, [0], [float("inf")])), "inf bytes"),
        (lambda: _clock([1.0], [[1]]), "no resource 1"),
        (lambda: _clock([1.0], [[0]]).start(_program((0.0, [1], [1.0]))), "no route 1"),
        (lambda: _clock([1.0], [[0]]).start(_program(), at_s=-1.0), "only goes on"),
        (lambda: _clock([1.0], [[0]]).cancel(3), "no run 3"),
        (lambda: _clock([1.0], [[0]]).run_until(float("nan")), "only goes on"),
        (lambda: FlowClock(np.ones(4)[::2]), "contiguous"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(FlowError, match=message):
        call()


def test_a_program_that_never_ends_can_be_interrupted() -> None:
    clock = _clock([1.0], [[]])
    clock.start(_program((0.0, [0], [1.0]), repeat=2**60))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # in here: where the next line comes late, no other test is interrupted
        clock.run_until()
    timer.join()
    assert time.monotonic() - begin < 30
