"""The controller of one set: the same engine and policy as on a site, with simulated time.

Arrives: events, the moment they happen.
Leaves: plans, once they are in force; settings of flows, once they are obeyed; every envelope, for the recorder.
Must not know: flows, jobs, how a plan becomes routes.

From a decision to its paths in force passes `switch_over_s`, as on switches: flows in progress keep their paths until
then. A policy that raises, answers with no action, does not answer in time or answers its own
changes for ever ends the run with a sentence that names it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType

from waystage.controllers.engine import PolicyEngine
from waystage.events import (
    Action,
    AssignPaths,
    Decided,
    Envelope,
    Event,
    FlowAction,
    FlowAdjusted,
    FlowSettings,
    IoAction,
    IoAdjusted,
    IoCompleted,
    IoSettings,
    PathPlan,
    PathsChanged,
    PathsRefused,
    TopologyChanged,
    encode_action,
)
from waystage.interconnect.planner import PlanError
from waystage.policies.base import Explained, Policy, reads_rates
from waystage.state import State
from waystage.topology import Topology
from waystage.worlds.base import WorldError

ANSWER_LIMIT_S = 10.0
"""A policy that thinks longer about one event is taken to loop; the shipped ones need microseconds."""

CHAIN_LIMIT = 100
"""Changes of paths, each the answer to the one before; more are taken to have no end."""

Later = Callable[[float, Callable[[], None]], None]


class Control:
    """`route` puts a plan in force and raises PlanError where it names no path; `later` calls after a delay."""

    def __init__(
        self,
        policy: Policy,
        *,
        shown: str,
        source: str,
        switch_over_s: float,
        obey_s: float,
        now: Callable[[], float],
        later: Later,
        route: Callable[[PathPlan], None],
        adjust: Callable[[str, FlowSettings], None],
        adjust_io: Callable[[str, IoSettings], None],
        grant_s: float,
        tell: Callable[[Envelope], None],
    ) -> None:
        self._watched = _Watched(policy, shown)
        self._engine = PolicyEngine(self._watched)
        self._source = source
        self._switch_over_s, self._obey_s = switch_over_s, obey_s
        self._now, self._later, self._tell = now, later, tell
        self._route, self._adjust = route, adjust
        self._adjust_io, self._grant_s = adjust_io, grant_s
        self._count = 0
        self._chain = 0

    @property
    def state(self) -> State:
        return self._engine.state

    @property
    def reads_rates(self) -> bool:
        """Whether the policy may read how much links carry."""
        return self._watched.reads_rates

    def untold(self) -> None:
        """An event that nothing reads is left out. Numbers of events do not depend on who reads."""
        self._count += 1

    def start(self, topology: Topology, facts: Iterable[Event] = ()) -> None:
        """Tell `facts` and the topology; what the policy answers is in force before the first job comes."""
        self._route(PathPlan())
        for fact in facts:
            self.event(fact)
        cause = self._publish(TopologyChanged(topology=topology))
        for action in self._handle(cause):
            if isinstance(action, AssignPaths):
                self._change(action.plan, "")

    def event(self, event: Event) -> None:
        """Something has happened: fold it, ask the policy, and have its answer carried out."""
        cause = self._publish(event)
        actions = self._handle(cause)
        plans = [action.plan for action in actions if isinstance(action, AssignPaths)]
        if isinstance(event, (PathsChanged, PathsRefused)):
            self._chain = self._chain + 1 if plans else 0
        if self._chain > CHAIN_LIMIT:
            raise WorldError(
                f"policy {self._watched.shown} answers each change of paths with another one: "
                "let it return nothing where the plan it wants is state.requested already"
            )
        for plan in plans:
            self._schedule(plan, cause.event_id)
        flows = dict.fromkeys(action.flow_id for action in actions if isinstance(action, FlowAction))
        for flow in [self.state.flows[flow_id] for flow_id in flows if flow_id in self.state.flows]:
            self._tell_flow(flow.flow_id, flow.settings)
        applications = dict.fromkeys(action.app for action in actions if isinstance(action, IoAction))
        if isinstance(event, IoCompleted):
            applications[event.app] = None  # its grant has ended
        for name in applications:
            self._tell_application(name)

    def _handle(self, item: Envelope) -> list[Action]:
        actions = self._engine.handle(item)
        self._watched.check(item.event)
        if actions or self._engine.reason:
            decided = Decided(
                policy=self._watched.name,
                cause_id=item.event_id,
                actions=tuple(encode_action(action) for action in actions),
                reason=self._engine.reason,
            )
            self._engine.handle(self._publish(decided))
        return actions

    def _tell_flow(self, flow_id: str, settings: FlowSettings) -> None:
        """As the actuator of flows: complete settings, which the flow's engine obeys a moment later."""
        self._publish(FlowAdjusted(flow_id=flow_id, settings=settings))
        self._later(self._obey_s, lambda: self._adjust(flow_id, settings))

    def _tell_application(self, name: str) -> None:
        """As the actuator of collective I/O."""
        app = self.state.io.applications.get(name)
        if app is None or not app.wanted.version:
            return
        settings = app.wanted
        self._publish(IoAdjusted(app=name, agent=next(iter(app.agents.values())), settings=settings))
        self._later(self._grant_s, lambda: self._adjust_io(name, settings))

    def _schedule(self, plan: PathPlan, cause_id: str) -> None:
        self._later(self._switch_over_s, lambda: self._change(plan, cause_id))

    def _change(self, plan: PathPlan, cause_id: str) -> None:
        try:
            self._route(plan)
        except PlanError as error:
            self.event(PathsRefused(cause_id=cause_id, switch="", reason=str(error)))
            return
        self.event(
            PathsChanged(
                plan=plan, cause_id=cause_id, install_ns=round(self._switch_over_s * 1e9) * bool(cause_id)
            )
        )

    def _publish(self, event: Event) -> Envelope:
        """With ids that are counted and times that are simulated: a run can be repeated to the byte."""
        self._count += 1
        item = Envelope(
            event=event,
            event_id=f"{self._source}-{self._count}",
            source=self._source,
            seq=self._count,
            time_ns=round(self._now() * 1e9),
        )
        self._tell(item)
        return item


class _Watched:
    """A policy whose failure is kept rather than logged; what it is asked and answers is unchanged."""

    def __init__(self, policy: Policy, shown: str) -> None:
        self.name = policy.name
        self.shown = shown
        self.reads_rates = reads_rates(policy)
        self._policy = policy
        self._failure = ""

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        try:
            with _TimeLimit(ANSWER_LIMIT_S):
                actions = self._policy(event, state)
                actions = actions if isinstance(actions, Explained) else list(actions)
            for action in actions:
                if not isinstance(action, Action):
                    raise TypeError(f"it returned a {type(action).__name__}, which is no action")
        except _TooLong:
            self._failure = f"gave no answer within {ANSWER_LIMIT_S:g} s: does it loop?"
            return ()
        except Exception as error:
            self._failure = f"failed with {type(error).__name__}: {error}"
            return ()
        return actions

    def check(self, event: Event) -> None:
        """Raises WorldError where the last answer was a failure."""
        if self._failure:
            raise WorldError(f"policy {self.shown} {self._failure} (on {type(event).__name__})")


class _TooLong(BaseException):
    """No Exception: a policy that catches those must not catch this."""


class _TimeLimit:
    """Raise _TooLong in the block after that time, in the thread of `answers_limited`."""

    __slots__ = ("_seconds",)
    thread: int | None = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        if self.thread == threading.get_ident():
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *raised: object) -> None:
        if self.thread == threading.get_ident():
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def answers_limited() -> Iterator[None]:
    """Answers of policies have a time limit in the block. Signals reach the main thread alone: elsewhere they have none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _ring)
    _TimeLimit.thread = threading.get_ident()
    try:
        yield
    finally:
        _TimeLimit.thread = None
        signal.signal(signal.SIGALRM, before)


def _ring(number: int, frame: FrameType | None) -> None:
    raise _TooLong
