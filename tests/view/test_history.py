"""The history of the view: any time can be shown again, in bounded memory."""

from __future__ import annotations

import random

from waystage.view.frames import Frame, decode, encode, merge
from waystage.view.history import Block, History


def filled(seconds: int, most_bytes: int, noise: int = 0) -> tuple[History, dict[int, int]]:
    """A history with one row that counts seconds, and what it was at each."""
    draw = random.Random(1)
    now = {"n": {"value": 0}}
    history = History(lambda: Frame(whole=True, set={"s": dict(now)}), most_bytes=most_bytes)
    told = {}
    for second in range(seconds):
        row = {"value": second, "noise": draw.randbytes(noise).hex()}
        now["n"] = row
        frame = Frame(
            seq=second + 1, t=second * 1000, set={"s": {"n": row}}, events=[{"t": second, "text": "x"}]
        )
        history.add(frame, encode(frame), {"mpi": float(second)})
        told[second * 1000] = second
    return history, told


def test_any_second_is_shown_as_it_was() -> None:
    history, told = filled(400, 1 << 20)
    for at in random.Random(2).sample(sorted(told), 100):
        frame = history.at(at)
        assert frame is not None and frame.set["s"]["n"]["value"] == told[at]
    assert history.span == (0, 399_000)


def test_a_closed_block_has_the_frames_of_each_second_merged() -> None:
    draw = random.Random(3)
    block = Block(Frame(whole=True, set={"s": {"a": {"value": 0}}}))
    expected: list[Frame] = []
    for n in range(200):
        keys = draw.sample("abcdef", 3)
        frame = Frame(
            seq=n,
            t=n * 95 + draw.randrange(90),
            set={"s": {key: {"value": n} for key in keys[:2]}},
            gone={"s": keys[2:]} if n % 3 else {},
            events=[{"t": n}],
            counts={"events": n},
        )
        data = encode(frame)
        block.append(frame, data)
        assert encode(frame) == data, "a frame that pages get is left as it is"
        if expected and expected[-1].t // 1000 == frame.t // 1000:
            merge(expected[-1], decode(data))
        else:
            expected.append(decode(data))
    assert len(block.unpack()) == 201
    block.close()
    assert [decode(data) for data in block.unpack()[1:]] == expected
    assert block.size == len(block.packed) and not block.frames
    block.coarsen(10_000)
    assert len(block.unpack()) == 1 + len({frame.t // 10_000 for frame in expected})


def test_times_outside_give_the_first_and_the_last_frame() -> None:
    history, _ = filled(100, 1 << 20)
    first, last = history.at(-5), history.at(10**12)
    assert first is not None and first.set["s"]["n"]["value"] == 0
    assert last is not None and last.set["s"]["n"]["value"] == 99
    assert History(lambda: Frame()).at(0) is None


def test_old_times_become_coarser_before_they_are_dropped() -> None:
    bound = 160_000
    history, told = filled(3000, bound, noise=100)
    assert history.size <= bound
    assert history.span is not None and history.span[1] == 2_999_000
    near = history.at(2_990_000)
    assert near is not None and near.set["s"]["n"]["value"] == 2990
    early = history.at(history.span[0] + 70_000)
    assert early is not None
    assert 0 <= told[history.span[0] + 70_000] - early.set["s"]["n"]["value"] <= 60


def test_series_have_at_most_the_points_that_are_asked_for() -> None:
    history, _ = filled(1000, 1 << 20)
    series = history.series(0, 10**9, 50)
    assert len(series["t"]) == len(series["mpi"]) == 50
    assert series["mpi"][0] == 10 and series["t"][-1] == 999_000
    assert history.series(5000, 7000, 50)["mpi"] == [5, 6, 7]
    assert history.series(7000, 5000, 50)["t"] == []
