"""How a set of jobs is run: the order of a job's parts, its faults, and a set's end, with parts that only wait."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import msgspec
import pytest

from harness import WAIT_S
from waystage.events import (
    Direction,
    Envelope,
    Event,
    JobStarted,
    LinkUse,
    PathPlan,
    PathsChanged,
    PathsRefused,
    PolicyFailed,
    PortUse,
    StagingStarted,
    TopologyChanged,
)
from waystage.experiment.queue import Start, node_queue
from waystage.experiment.results import JobRecord
from waystage.experiment.schema import Compute, ComputeIo, Limits, Staging
from waystage.experiment.workload import JobRequest
from waystage.interconnect.graphml import read_topology
from waystage.jobs.notify import Notifier
from waystage.worlds.base import JobFailed
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.one_job import JobRun
from waystage.worlds.lab.one_set import SetRun
from waystage.worlds.lab.parts import LabParts
from waystage.worlds.lab.supervision import SupervisedProcess
from waystage.worlds.recorder import Recorder

PAPER = read_topology("paper")


class Heard:
    """A publisher that keeps what it publishes."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event, *, confirm: bool = False, timeout: float = 5.0) -> Envelope:
        self.events.append(event)
        return Envelope(event=event, event_id=str(len(self.events)), time_ns=len(self.events))

    def close(self) -> None:
        pass

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


class Parts:
    """Parts that take `each_s` and fail where `broken` says."""

    def __init__(self, broken: str = "", each_s: float = 0.01) -> None:
        self.broken = broken
        self.each_s = each_s
        self.cleared: list[str] = []

    def prepare(self, request: JobRequest, start: Start) -> None:
        self._do("prepare", None)

    def stage(
        self, request: JobRequest, start: Start, direction: Direction, limit_s: float, stop: threading.Event
    ) -> None:
        self._do(f"stage-{direction}", stop)

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        self._do("compute", stop)

    def io(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        self._do("io", stop)

    def clear(self, start: Start) -> None:
        self.cleared.append(start.job_id)

    def _do(self, part: str, stop: threading.Event | None) -> None:
        if part == self.broken:
            raise JobFailed(f"{part} broke")
        if stop is None:
            return
        if stop.wait(self.each_s):
            raise JobFailed("stopped")


def request(index: int = 0, submit_s: float = 0.0, io: bool = False) -> JobRequest:
    return JobRequest(
        index=index,
        kind="job",
        submit_s=submit_s,
        nodes=3,
        storage="storage",
        stage_in=Staging(bytes=10, to="each"),
        stage_out=Staging(bytes=5),
        compute=Compute(),
        io=ComputeIo(bytes=7) if io else None,
    )


def job_run(parts: Parts, heard: Heard) -> JobRun:
    begin = time.monotonic()
    return JobRun(
        parts,
        Notifier(heard),
        Limits(),
        policy="ecmp",
        set_index=0,
        set_began_s=0.0,
        now=lambda: time.monotonic() - begin,
    )


START = Start(job_id="j", nodes=("c1", "c4", "c2"))


def test_a_job_stages_in_computes_and_stages_out_and_says_so() -> None:
    heard, parts = Heard(), Parts()
    record = job_run(parts, heard)(request(), START, threading.Event())
    assert heard.names == [
        "JobStarted",
        "StagingStarted",
        "StagingFinished",
        "StagingStarted",
        "StagingFinished",
        "JobFinished",
    ]
    assert [e.bytes for e in heard.events if isinstance(e, StagingStarted)] == [30, 5]
    assert record.status == "done" and parts.cleared == ["j"]
    assert min(record.stage_in_s, record.compute_s, record.stage_out_s) >= 0.01
    assert record.job_s >= record.staging_s + record.compute_s


def test_io_is_announced_beside_the_computation() -> None:
    heard = Heard()
    record = job_run(Parts(), heard)(request(io=True), START, threading.Event())
    assert record.status == "done"
    assert heard.names[3:5] == ["IoStarted", "IoFinished"]


@pytest.mark.parametrize(
    ("broken", "ends"),
    [
        ("prepare", []),
        ("stage-in", ["StagingFinished", "JobFinished"]),
        ("compute", ["JobFinished"]),
        ("io", ["IoFinished", "JobFinished"]),
        ("stage-out", ["StagingFinished", "JobFinished"]),
    ],
)
def test_whatever_breaks_every_start_gets_its_end_and_the_cause_is_kept(broken: str, ends: list[str]) -> None:
    heard, parts = Heard(), Parts(broken)
    record = job_run(parts, heard)(request(io=True), START, threading.Event())
    assert (record.status, record.cause) == ("failed", f"{broken} broke")
    assert heard.names[len(heard.names) - len(ends) :] == ends
    started = [n for n in heard.names if n.endswith("Started")]
    assert len(started) * 2 == len(heard.names)
    assert parts.cleared == ["j"]


def run_set(
    parts: Parts, jobs: list[JobRequest], *, stop_on_failure: bool = False
) -> tuple[bool, list[JobRecord]]:
    records: list[JobRecord] = []
    run = SetRun(
        jobs,
        node_queue(PAPER, "alternate-edges", 2),
        job_run(parts, Heard()),
        job_id=lambda job: f"j{job.index}",
        stop_on_failure=stop_on_failure,
    )
    return run.run(records.append, lambda: None), records


class InPairs(Parts):
    """Parts whose computations wait for that of another job."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        self.both.wait(WAIT_S)


def test_a_set_runs_every_job_two_at_a_time() -> None:
    whole, records = run_set(InPairs(), [request(n) for n in range(6)])
    assert {record.status for record in records} == {"done"}
    assert whole and sorted(r.index for r in records) == list(range(6))
    moments = [(r.started_at_s, 1) for r in records] + [(r.ended_at_s, -1) for r in records]
    running = peak = 0
    for _, step in sorted(moments):
        running += step
        peak = max(peak, running)
    assert peak == 2


def test_jobs_are_not_submitted_before_their_time() -> None:
    _, records = run_set(Parts(), [request(0), request(1, submit_s=0.4)])
    late = next(r for r in records if r.index == 1)
    assert late.started_at_s >= 0.4


def test_a_failed_job_ends_the_set_only_where_asked() -> None:
    whole, records = run_set(Parts("compute"), [request(n) for n in range(4)])
    assert whole and len(records) == 4
    whole, records = run_set(Parts("compute"), [request(n) for n in range(4)], stop_on_failure=True)
    assert not whole and len(records) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_set_leaves_no_thread_behind(error: type[BaseException]) -> None:
    before = set(threading.enumerate())

    def check() -> None:
        raise error

    run = SetRun(
        [request(0)],
        node_queue(PAPER, "linear"),
        job_run(Parts(each_s=60), Heard()),
        job_id=lambda job: "j",
        stop_on_failure=False,
    )
    with pytest.raises(error):
        run.run(lambda record: None, check)
    assert not set(threading.enumerate()) - before


# -- programs ----------------------------------------------------------------------------------------------


def watched(code: str) -> SupervisedProcess:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return SupervisedProcess(process, "program x")


def test_a_program_that_ends_well_gives_what_it_said() -> None:
    assert watched("print('hello')").wait(WAIT_S, threading.Event()) == "hello"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import sys; print('the matrix is singular'); sys.exit(3)",
            "ended with status 3: the matrix is singular",
        ),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("raise OSError(28, 'No space left on device')", "No space left on device"),
        ("import time; time.sleep(600)", "did not end within 0.5 s"),
    ],
)
def test_a_program_that_does_not_gives_the_cause(code: str, words: str) -> None:
    with pytest.raises(JobFailed) as caught:
        watched(code).wait(0.5 if "sleep" in code else WAIT_S, threading.Event())
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_program_that_mpirun_cannot_execute_is_said_not_to_have_started() -> None:
    rule = "-" * 74
    account = [
        rule,
        'Open MPI tried to fork a new process via the "execve" system call but',
        "failed.",
        "  Application name:  ./deck.txt",
        "  Error:             Exec format error",
        rule,
        "mpirun was unable to start the specified application as it encountered an",
        "error:",
    ]
    code = f"import sys; print('\\n'.join({account!r})); sys.exit(131)"
    with pytest.raises(JobFailed, match=r"program x could not be started: Exec format error$"):
        watched(code).wait(WAIT_S, threading.Event())


def test_jobs_that_start_together_make_the_files_they_share_once(tmp_path: Path) -> None:
    class Hosts:
        def host_dir(self, host: str) -> Path:
            folder = tmp_path / host
            folder.mkdir(exist_ok=True)
            return folder

    job = msgspec.structs.replace(request(), stage_in=Staging(bytes=1 << 20, to="each"), stage_out=Staging())
    parts = LabParts(cast("Lab", Hosts()), ())
    with ThreadPoolExecutor(8) as pool:
        starts = [Start(job_id=f"j{n}", nodes=("c1", "c2", "c3")) for n in range(8)]
        list(pool.map(lambda start: parts.prepare(job, start), starts))
    assert [path.stat().st_size for path in (tmp_path / "storage" / "data").iterdir()] == [1 << 20]


def test_a_program_that_says_much_without_end_is_stopped() -> None:
    with pytest.raises(JobFailed, match="did not end within"):
        watched("while True: print('x' * 5000)").wait(0.5, threading.Event())


def test_a_program_is_stopped_when_the_run_is() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(JobFailed, match="stopped with the run"):
        watched("import time; time.sleep(600)").wait(WAIT_S, stop)


# -- records -----------------------------------------------------------------------------------------------


def test_a_switch_over_is_measured_from_the_event_that_caused_it() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    recorder.begin("link-separation", 3)
    recorder(Envelope(event=StagingStarted(job_id="j"), event_id="cause", time_ns=1_000_000_000))
    changed = PathsChanged(
        plan=PathPlan(separated=True),
        cause_id="cause",
        processor_ns=1_000_000,
        planner_ns=2_000_000,
        install_ns=3_000_000,
        messages=8,
        switches=2,
    )
    recorder(Envelope(event=changed, event_id="x", time_ns=1_020_000_000))
    (switch,) = recorder.switch_overs
    assert (switch.policy, switch.set, switch.to) == ("link-separation", 3, "on")
    assert (switch.total_ms, switch.processor_ms, switch.planner_ms, switch.install_ms) == (20, 1, 2, 3)
    assert len(recorder.events) == 2


def test_paths_at_start_up_are_no_switch_over() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    recorder(Envelope(event=PathsChanged(plan=PathPlan(), cause_id="topology"), event_id="x", time_ns=5))
    assert recorder.switch_overs == []


def test_link_use_is_kept_for_links_between_switches_by_class() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    recorder.begin("ecmp", 0)
    ports = (
        PortUse(node="core1", port=2, bytes=900, by_class={"mpi": 700, "staging": 200}),
        PortUse(node="edge1", port=1, bytes=50),  # to a host
    )
    recorder(Envelope(event=LinkUse(interval_ns=10**9, ports=ports), event_id="u", time_ns=2 * 10**9))
    assert {(s.node, s.peer, s.traffic, s.bytes, s.core) for s in recorder.samples} == {
        ("core1", "edge2", "all", 900, True),
        ("core1", "edge2", "mpi", 700, True),
        ("core1", "edge2", "staging", 200, True),
    }
    assert recorder.samples[0].at_s == 2.0
    assert recorder.events == []


def test_a_set_begins_with_its_topology_also_where_the_controller_published_it_before() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    seen: list[Envelope] = []

    class Watching:
        def begin(self, policy: str, set_index: int) -> None:
            seen.clear()

        def __call__(self, item: Envelope) -> None:
            seen.append(item)

    recorder.watcher = Watching()
    use = Envelope(
        event=LinkUse(interval_ns=10**9, ports=()), event_id="u", source="controller", seq=7, time_ns=10**9
    )
    told = Envelope(event=TopologyChanged(topology=PAPER), event_id="t", source="controller", time_ns=5)
    for first in (use, told):
        recorder.begin("ecmp", 0, live=True)
        recorder(first)
        recorder(use)
        kinds = [type(item.event) for item in seen]
        assert kinds.count(TopologyChanged) == 1 and kinds[0] is TopologyChanged
        assert seen[0].source == "controller" and len({item.event_id for item in seen}) == 2


def test_a_refused_rule_is_kept_as_a_problem() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    recorder(Envelope(event=PathsRefused(cause_id="", switch="core1", reason="table full"), event_id="r"))
    recorder(Envelope(event=JobStarted(job_id="j", nodes=("c1",)), event_id="s"))
    assert recorder.problems == ["switch core1 refused a rule: table full"]


def test_figures_of_a_policy_that_failed_do_not_count() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    failed = PolicyFailed(policy="own", cause_id="c", event="JobStarted", error="KeyError: 'x'")
    recorder(Envelope(event=failed, event_id="r"))
    assert recorder.broken == ["policy own failed on JobStarted: KeyError: 'x'"]
    assert recorder.problems == []
