"""Which request is next, what follows from the end of an engine, and how long a transfer takes: pure decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from waystage.staging.errors import Invalid, StagingError
from waystage.staging.ledger import Ledger
from waystage.staging.queue import Queue
from waystage.staging.requests import Request, Submission, checked, shown
from waystage.staging.retries import MOST_FRUITLESS, Ended, judge
from waystage.staging.schedule import Limits, decide


def request(number: int, uid: int = 1, job: str = "1", **more: Any) -> Request:
    fields = {"source": f"/s{number}", "destination": f"/d{number}", "direction": "in", "job_id": job}
    asked = {
        name: more.pop(name) for name in ("source", "destination", "due_ns", "node_local") if name in more
    }
    submission = Submission(**(fields | asked))  # type: ignore[arg-type]
    return Request(id=number, uid=uid, gid=uid, user=f"u{uid}", key="", submission=submission, **more)


def started(requests: list[Request], **limits: int) -> list[int]:
    return list(decide(requests, Limits(**limits), 10, {}).start)  # type: ignore[arg-type]


def test_users_take_turns_whatever_the_order_of_submission() -> None:
    many = [request(number, uid=1) for number in range(1, 11)]
    late = [request(number, uid=2) for number in range(11, 13)]
    assert started([*many, *late], engines=4) == [1, 11, 2, 12]


def test_jobs_of_a_user_take_turns_and_the_earliest_deadline_of_a_job_is_first() -> None:
    waiting = [
        request(1, job="a"),
        request(2, job="a", due_ns=50),
        request(3, job="a", due_ns=40),
        request(4, job="b"),
    ]
    assert started(waiting, engines=4) == [3, 4, 2, 1]


def test_limits_are_kept_and_said() -> None:
    waiting = [request(number) for number in range(1, 6)]
    decision = decide(waiting, Limits(engines=8, engines_per_user=2), 10, {})
    assert decision.start == (1, 2) and "2 engines of this user" in decision.reasons[3]
    decision = decide(waiting, Limits(engines=1), 10, {})
    assert decision.start == (1,) and "all 1 engines" in decision.reasons[2]


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        (("/s", "/d"), ("/x", "/d"), "same destination"),
        (("/s", "/d"), ("/x", "/d/below"), "same destination"),
        (("/s", "/d/below"), ("/x", "/d/"), "same destination"),
        (("/s", "/d"), ("/d/out", "/x"), "writes this source"),
        (("/s", "/d"), ("/x", "/s/more"), "reads this destination"),
        (("/s", "/d"), ("/x", "/dd"), None),
        (("/s", "/d"), ("/s", "/x"), None),
        (("/s", "/d"), ("/x", "h:/d"), None),
        (("/s", "h:/d"), ("/x", "h:/d"), "same destination"),
        (("/s", "/d"), ("/x", "/e/../d"), "same destination"),
    ],
)
def test_a_request_waits_for_an_earlier_one_that_it_would_disturb(
    earlier: tuple[str, str], later: tuple[str, str], why: str | None
) -> None:
    one, two = (
        request(number, source=ends[0], destination=ends[1]) for number, ends in ((1, earlier), (2, later))
    )
    decision = decide([one, two], Limits(), 10, {})
    assert (2 in decision.start) == (why is None)
    assert why is None or (why in decision.reasons[2] and "request 1" in decision.reasons[2])
    two.uid = 9
    assert decide([one, two], Limits(), 10, {}).start == (1, 2), "a name of another user's blocks no other"


def test_a_far_end_is_waited_for_with_longer_and_longer_pauses_and_then_given_up() -> None:
    now, pauses = 10**18, list[float]()
    each = request(1)
    while True:
        verdict = judge(each, Ended("unreachable", "no route"), 3600.0, now)
        each.fruitless, each.fruitless_since_ns = verdict.fruitless, verdict.fruitless_since_ns
        if verdict.state != "queued":
            break
        pauses.append((verdict.not_before_ns - now) / 1e9)
        now = verdict.not_before_ns
    assert verdict.state == "failed" and "no route; given up after 36" in verdict.text
    assert pauses == sorted(pauses) and pauses[0] == 0.5 and pauses[-1] == 60.0


def test_a_full_storage_has_one_remedy() -> None:
    text = "a: destination: write: No space left on device: make room, and give the same command again"
    verdict = judge(request(1), Ended("no-space", text), 60.0, 0)
    assert verdict.text.count("make room") == 1
    assert verdict.text.endswith("make room, then submit the request again: it resumes")
    assert verdict.text.startswith("a: destination: write: No space left on device")


def test_progress_makes_attempts_count_anew_and_permanent_errors_end_at_once() -> None:
    tired = request(1, fruitless=MOST_FRUITLESS - 1, fruitless_since_ns=1)
    assert judge(tired, Ended("died", "signal 9"), 10.0, 10**18).state == "failed"
    assert judge(tired, Ended("died", "signal 9", moved=True), 10.0, 10**18).fruitless == 1
    for kind in ("refused", "denied", "untrusted", "no-space", "ends", "entries", "quota", "internal"):
        assert judge(request(1), Ended(kind, "why"), 10.0, 10**18).state == "failed"


json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(some.characters()),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = Submission.__struct_fields__
VALID = {"direction": "in", "source": "/a", "destination": "/b", "job_id": "1"}


@given(some.dictionaries(some.sampled_from(FIELDS), json_values, max_size=4))
def test_a_submission_is_taken_or_refused_with_a_sentence(values: dict[str, Any]) -> None:
    try:
        found = checked(msgspec.convert(VALID | values, Submission))
    except (Invalid, msgspec.ValidationError):
        return
    asked = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), Submission)
    assert asked == found
    one = Request(id=1, uid=1, gid=1, user="u", key="", submission=found)
    json.dumps(shown(one, 1, explain=True)).encode()
    decide([one, one], Limits(), 1, {})


@given(some.lists(json_values | some.dictionaries(
    some.sampled_from(("t", "counts", "choice", "pair", "kind", "text", "warning", "plan")),
    json_values | some.sampled_from(("progress", "choice", "ended", "pair")),
), max_size=5))  # fmt: skip
def test_no_report_of_an_engine_ends_the_stager(
    tmp_path_factory: pytest.TempPathFactory, reports: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("queue") / "state" / "q.sqlite"
    with Queue(path) as queue:
        ledger = Ledger(queue, Limits(bytes_per_user=1000))
        with queue.transaction():
            one = queue.add(request(0))
            ledger.begin(one, 1, 1, "boot", 1)
        forged = {"t": "pair", "pair": "\ud800"}, {"t": "progress", "counts": {"bytes": 7}}
        for report in (*reports, *forged):
            if isinstance(report, dict):
                ledger.hear(one, report)
        ledger.settle(one, ledger.ends.pop(one.id, Ended("died", "x")), ledger.counts.pop(one.id, {}))
        with queue.transaction():
            two = queue.add(request(0))
            ledger.begin(two, 1, 1, "boot", 1)
        for report in forged:
            ledger.hear(two, report)
        ledger.settle(two, Ended(), ledger.counts.pop(two.id, {}))
        assert queue.find(one.id) is not None and queue.find(two.id) is not None


def test_a_further_attempt_says_why_the_one_before_ended_until_it_moves_data(tmp_path: Path) -> None:
    with Queue(tmp_path / "state" / "q.sqlite") as queue:
        ledger = Ledger(queue, Limits())
        with queue.transaction():
            one = queue.add(request(0))
            ledger.begin(one, 1, 1, "boot", 1)
        assert one.reason == ""
        for attempt in (2, 3):
            ledger.settle(one, Ended("unreachable", "no route"))
            assert one.reason.startswith("no route; attempt")
            with queue.transaction():
                ledger.begin(one, 1, 1, "boot", 1)
            ledger.hear(one, {"t": "progress", "counts": {"found": 9}})
            assert one.reason == f"attempt {attempt}; the one before it: no route"
        ledger.hear(one, {"t": "progress", "counts": {"bytes": 1}})
        assert one.reason == ""


def test_what_was_committed_is_there_again_and_what_was_not_is_not(tmp_path: Path) -> None:
    path = tmp_path / "state" / "q.sqlite"
    with Queue(path) as queue:
        with queue.transaction():
            kept = queue.add(request(0, source="/a\udcff"))
        with pytest.raises(KeyError), queue.transaction():
            queue.add(request(0))
            kept.reason = "changed"
            queue.write(kept)
            raise KeyError
        assert list(queue.open) == [kept.id] and queue.open[kept.id].reason == ""
    with Queue(path) as queue:
        assert queue.open[kept.id].submission.source == "/a\udcff"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_queue_on_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match="file"):
        Queue(tmp_path / "file" / "q.sqlite")
