"""The global controller: decisions, faults of policies and actuators, restarts, `kill -9`."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import WAIT_S, command, ran, wait_until
from waystage.backplane import Backplane, BackplaneConfig
from waystage.backplane.config import load_config
from waystage.backplane.inbox import Arrival
from waystage.backplane.outbox import ReplayRequest
from waystage.controllers import GlobalController, Journal, site
from waystage.events import (
    Action,
    AssignPaths,
    Decided,
    Envelope,
    Event,
    JobFinished,
    JobStarted,
    PathPlan,
    PolicyFailed,
    StagingFinished,
    StagingStarted,
    decode_action,
)
from waystage.policies.base import load_policy
from waystage.state import State


class ByStaging:
    """Asks for the plan whose seed is the number of jobs that stage; fails on job `bad`."""

    name = "by-staging"

    def __call__(self, event: Event, state: State) -> list[Action]:
        if isinstance(event, JobStarted) and event.job_id == "bad":
            raise RuntimeError("a policy's mistake")
        plan = PathPlan(seed=len(state.staging_jobs))
        return [] if plan == state.requested else [AssignPaths(plan=plan)]


class Switches:
    def __init__(self, fails: bool = False) -> None:
        self.applied: list[tuple[Action, Envelope]] = []
        self.fails = fails

    def accepts(self, action: Action) -> bool:
        return isinstance(action, AssignPaths)

    def apply(self, action: Action, cause: Envelope) -> None:
        self.applied.append((action, cause))
        if self.fails:
            raise OSError("no switch there")


@pytest.fixture
def backplane() -> Iterator[Backplane]:
    with Backplane.open() as opened:
        yield opened


def test_an_event_becomes_a_decision_an_action_and_state(backplane: Backplane, tmp_path: Path) -> None:
    switches = Switches()
    told = backplane.subscribe(Decided)
    with GlobalController(ByStaging(), [switches], backplane, tmp_path) as controller:
        cause = backplane.publish(StagingStarted(job_id="1"), confirm=True, timeout=WAIT_S)
        item = told.get(WAIT_S)
        assert item is not None and isinstance(item.event, Decided)
        assert item.event.cause_id == cause.event_id
        wanted = AssignPaths(plan=PathPlan(seed=1))
        assert [decode_action(raw) for raw in item.event.actions] == [wanted]
        assert switches.applied == [(wanted, cause)]
        assert controller.snapshot().requested == wanted.plan


def test_a_policy_that_raises_is_counted_and_stops_nothing(
    backplane: Backplane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switches = Switches()
    told = backplane.subscribe(PolicyFailed)
    with GlobalController(ByStaging(), [switches], backplane, tmp_path) as controller:
        for _ in range(3):
            backplane.publish(JobStarted(job_id="bad", nodes=()))
        backplane.publish(StagingStarted(job_id="1"), confirm=True, timeout=WAIT_S)
        wait_until(lambda: bool(switches.applied))
        assert controller.stats.policy_errors == 3
        assert "bad" in controller.snapshot().jobs, "the event counts, although the policy failed"
        failure = told.get(WAIT_S)
        assert failure is not None and isinstance(failure.event, PolicyFailed)
        assert (failure.event.policy, failure.event.event) == ("by-staging", "JobStarted")
        assert told.get(0.2) is None, "once, however often it fails in the same way"
    assert "by-staging failed on JobStarted" in caplog.text


def test_an_actuator_that_raises_is_counted_and_stops_nothing(backplane: Backplane, tmp_path: Path) -> None:
    switches, others = Switches(fails=True), Switches()
    with GlobalController(ByStaging(), [switches, others], backplane, tmp_path) as controller:
        backplane.publish(StagingStarted(job_id="1"))
        backplane.publish(StagingFinished(job_id="1"))
        wait_until(lambda: len(others.applied) == 2)
        assert controller.stats.actuator_errors == 2


def test_a_restart_restores_the_state_and_applies_the_plan_again(tmp_path: Path) -> None:
    with Backplane.open() as backplane, GlobalController(ByStaging(), [], backplane, tmp_path) as first:
        for number in range(50):
            backplane.publish(StagingStarted(job_id=str(number)))
        backplane.publish(StagingFinished(job_id="7"), confirm=True, timeout=WAIT_S)
        # The same number of jobs staged before the last of them began.
        wait_until(lambda: "7" not in (state := first.snapshot()).staging_jobs and "49" in state.staging_jobs)
        before = first.snapshot()
        assert before.requested == PathPlan(seed=49)
    switches = Switches()
    with Backplane.open() as backplane:
        second = GlobalController(ByStaging(), [switches], backplane, tmp_path)
        assert second.requested == PathPlan(seed=49), "known before it starts, for the actuators"
        with second:
            assert [action for action, _ in switches.applied] == [AssignPaths(plan=PathPlan(seed=49))]
            after = second.snapshot()
    # `Decided` events that were still on their way at the snapshot count too.
    assert set(after.difference(before)) <= {"events", "time_ns"}


def test_what_was_journalled_but_not_handled_is_handled_after_the_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    event = StagingStarted(job_id="1")
    journal.append([(Envelope(event=event, event_id="e1", source="s", seq=1, time_ns=5), 0)])
    journal.close()
    switches = Switches()
    with Backplane.open() as backplane, GlobalController(ByStaging(), [switches], backplane, tmp_path):
        assert [action for action, _ in switches.applied] == [AssignPaths(plan=PathPlan(seed=1))]
        assert switches.applied[0][1].event_id == "e1"


def test_a_slow_actuator_does_not_delay_the_journal(backplane: Backplane, tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Switches):
        def apply(self, action: Action, cause: Envelope) -> None:
            begun.set()
            goes_on.wait(WAIT_S)

    with GlobalController(ByStaging(), [Slow()], backplane, tmp_path):
        backplane.publish(StagingStarted(job_id="1"))
        assert begun.wait(WAIT_S)
        try:
            backplane.publish(JobStarted(job_id="1", nodes=()), confirm=True, timeout=WAIT_S)
        finally:
            goes_on.set()


# -- the real program, killed ---------------------------------------------------------------------


@contextmanager
def _controller(endpoint: str, tmp_path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    argv = command("controller", "--listen", endpoint)
    argv += ["--state-dir", str(tmp_path / "state"), *more]
    with (tmp_path / "controller.log").open("a") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready"), (tmp_path / "controller.log").read_text()[
            -2000:
        ]
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"unixsock-stream/{tmp_path}/b.sock"


def test_no_event_is_lost_or_doubled_when_the_controller_is_killed(endpoint: str, tmp_path: Path) -> None:
    with _controller(endpoint, tmp_path) as process:
        publishers = [
            Backplane.open(BackplaneConfig(name=f"node{n}", connect=(endpoint,), scope=f"node{n}"))
            for n in range(8)
        ]
        try:
            for number in range(100):
                for publisher in publishers:
                    publisher.publish(JobStarted(job_id=f"{publisher.config.name}-{number}", nodes=()))
                if number == 40:
                    process.kill()
                    process.wait()
            with _controller(endpoint, tmp_path) as second:
                for publisher in publishers:
                    publisher.publish(
                        JobFinished(job_id=f"{publisher.config.name}-0"), confirm=True, timeout=WAIT_S
                    )
                second.send_signal(signal.SIGTERM)
                assert second.wait(WAIT_S) == 0
        finally:
            for publisher in publishers:
                publisher.close()
    journal = Journal(tmp_path / "state" / "journal.db")
    events = [item.event for item in journal.events()]
    journal.close()
    started = [event.job_id for event in events if isinstance(event, JobStarted)]
    for n in range(8):
        own = [job_id for job_id in started if job_id.startswith(f"node{n}-")]
        assert own == [f"node{n}-{number}" for number in range(100)]


def test_a_confirmed_event_is_in_the_journal_though_its_publisher_could_not_be_asked_at_once(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event arrives before its publisher, whose connection is new, can be asked for those before it. The
    controller's own journal has no answer to that."""
    with (
        Backplane.open(BackplaneConfig(listen=(endpoint,))) as router,
        GlobalController(load_policy("null"), [], router, tmp_path) as controller,
        Backplane.open(BackplaneConfig(name="publisher", connect=(endpoint,))) as publisher,
    ):
        publisher.publish(JobStarted(job_id="0", nodes=()), confirm=True, timeout=WAIT_S)
        subscription = controller._intake._subscription
        offer, ask, asked = subscription.offer, router._replay_from, list[str]()

        def lossy(*items: Arrival) -> None:
            offer(*(item for item in items if item.envelope.seq not in {2, 3}))

        def late(key: str, source: str, request: ReplayRequest) -> object:
            asked.append(key)
            return None if len(asked) == 1 else ask(key, source, request)

        monkeypatch.setattr(subscription, "offer", lossy)
        monkeypatch.setattr(router, "_replay_from", late)
        for number in range(1, 5):
            publisher.publish(JobStarted(job_id=str(number), nodes=()))
        assert publisher.confirm_published(timeout=WAIT_S)
        assert [item.event for item in controller._journal.events()] == [
            JobStarted(job_id=str(number), nodes=()) for number in range(5)
        ]


def test_sigterm_drains_and_the_ready_file_comes_and_goes(endpoint: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with _controller(endpoint, tmp_path, "--ready-file", str(ready)) as process:
        wait_until(ready.exists)
        assert int(ready.read_text()) == process.pid
        with Backplane.open(BackplaneConfig(connect=(endpoint,))) as publisher:
            publisher.publish(JobStarted(job_id="1", nodes=()), confirm=True, timeout=WAIT_S)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert not ready.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--listen", "tcp/0.0.0.0:7447"], 1, "--insecure"),
        (["--policy", "no-such-policy"], 2, "unknown policy"),
        (["--policy", "ecmp:5"], 2, "not key=value"),
        (["--topology", "no-such.graphml"], 3, "no-such"),
        (["--openflow", "nowhere"], 2, "HOST:PORT"),
        (["--openflow", "0.0.0.0:6653"], 2, "pretend to be a switch"),
        (["--openflow", "[::]:6653"], 2, "pretend to be a switch"),
        (["--openflow", "0.0.0.0:6653", "--openflow-allow", "0.0.0.0/0"], 2, "every address"),
        (["--openflow", "0.0.0.0:6653", "--openflow-allow", "edge1"], 2, "no address or network"),
        (["--openflow", "127.0.0.1:6653", "--openflow-tls-ca", "ca.pem"], 3, "certificate"),
        (["--openflow-allow", "192.0.2.1"], 2, "--openflow HOST:PORT"),
        (["--tier", "node"], 2, "--connect"),
        (["--config", "absent.yaml"], 3, "absent.yaml"),
    ],
)
def test_what_cannot_run_says_why(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    argv = command("controller", "--state-dir", str(tmp_path / "s"), *arguments)
    done = ran(argv)
    assert done.code == code, done.err
    assert done.err.startswith("waystage: error: ") and words in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("openflow", "words"),
    [
        ("0.0.0.0:6653", "pretend to be a switch"),
        ("{listen: '0.0.0.0:6653'}", "pretend to be a switch"),
        ("{listen: '0.0.0.0:6653', allow: ['10.0.0.0/8', '0.0.0.0/1', '128.0.0.0/1']}", "every address"),
        ("{listen: '0.0.0.0:6653', tls: {ca: absent.pem, certificate: c, key: k}}", "absent.pem"),
        ("{listen: '0.0.0.0:6653', alow: ['10.0.0.0/8']}", "alow"),
    ],
)
def test_a_file_that_would_let_strangers_be_switches_is_refused(
    tmp_path: Path, openflow: str, words: str
) -> None:
    config = tmp_path / "site.yaml"
    config.write_text(f"state_dir: {tmp_path / 's'}\nopenflow: {openflow}\n")
    argv = command("controller", "--config", str(config))
    done = ran(argv)
    assert done.code != 0
    assert done.err.startswith("waystage: error: ") and words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists(), "nothing was begun"


def test_the_sample_configuration_names_who_may_be_a_switch() -> None:
    sample = Path(__file__).parents[2] / "deploy" / "zenoh" / "global.yaml"
    config = site.site_from(load_config(sample), str(sample))
    assert config.switches is not None and config.switches.tls is not None
    assert config.switches.tls.switches


def test_a_port_in_use_is_named(tmp_path: Path, endpoint: str) -> None:
    with _controller(endpoint, tmp_path):
        argv = command("controller", "--state-dir", str(tmp_path / "other"))
        done = ran([*argv, "--listen", endpoint])
    assert done.code == 1
    assert f"cannot listen on {endpoint}: is it in use by another controller" in done.err


def test_a_configuration_file_gives_what_options_leave_out(tmp_path: Path, endpoint: str) -> None:
    config = tmp_path / "site.yaml"
    config.write_text(f"policy: ecmp\nbackplane:\n  name: head\n  listen: ['{endpoint}']\n")
    argv = command("controller", "--config", str(config), "--json")
    with subprocess.Popen(
        [*argv, "--state-dir", str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert '"policy": "ecmp"' in said and '"source": "head.' in said and endpoint in said
