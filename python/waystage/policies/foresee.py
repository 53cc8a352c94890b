"""`foresee`: simulates what each of several policies would lead to, and acts as the one that leads to the best.

Arrives: events and the state. Leaves: actions, with the reason. Must not know: worlds, clocks.

At a decision (a job, staging or flow begins or ends, the topology changes, or `every_s` have passed) each candidate is
asked what it wants, as if nothing had been asked for before, and the next seconds of the live state, at most
`horizon_s`, are simulated under its answer, the candidate being asked again at every end foreseen
(`waystage.forecast`). The candidate
with the best `objective` is chosen, unless it is less than `gain` better than the one in force. Between decisions the
one in force is asked, and acts alone.

* `stretch`: the harmonic mean of the jobs' slowdowns, time over the time alone: the inverse of their mean progress. `makespan`: the end of the last flow. `deadline`:
  the seconds by which stagings come after their jobs are due. Ties go to the smaller stretch, then to the first.
* With the candidate chosen it also tries whether some jobs' stagings should go first, and the others in turn as these
  end: those first that together end soonest, so that jobs go on together whose bottlenecks differ. A staging older than `hold_s` is not held, so that none waits for ever; 0 holds none.
* Bounded: `steps` of work for all candidates together (`waystage.forecast.model`). The one in force is simulated first,
  then the fallback, then the others in order; where the steps do not suffice for all, a shorter time is simulated, and
  the best of those that were simulated acts. Where none was, or there are more than `most_flows`, the `fallback`
  candidate acts. Nothing is measured in real time, so the same events give the same decisions everywhere.
* The candidate in force is the one that the last reason names, which is part of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from waystage.events import (
    Action,
    AssignPaths,
    Event,
    FileSystemDeclared,
    FlowAction,
    FlowFinished,
    FlowProgress,
    FlowSettings,
    FlowStarted,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkUse,
    Pause,
    Resume,
    RuleStyle,
    SetLoaders,
    SetMode,
    SetRate,
    StagingFinished,
    StagingStarted,
    TopologyChanged,
    WidePathDeclared,
)
from waystage.forecast.model import Answer, Forecast, Future, own_copy
from waystage.forecast.resources import Kept
from waystage.policies.base import Explained, Policy
from waystage.policies.combined import Combined
from waystage.policies.members import MOST, SETTINGS, acts_on, build
from waystage.policies.off_status import TOPOLOGY_EVENTS
from waystage.state import State

Objective = Literal["stretch", "makespan", "deadline"]

DECISIONS: tuple[type[Event], ...] = (
    JobStarted,
    JobFinished,
    StagingStarted,
    StagingFinished,
    IoStarted,
    IoFinished,
    FlowStarted,
    FlowFinished,
    FileSystemDeclared,
    WidePathDeclared,
    *TOPOLOGY_EVENTS,
)

CANDIDATES: tuple[object, ...] = ("ecmp", "link-separation", "demand-separation")

HOLD_GAIN = 0.05
"""A job is held only for a mean gain worth the risk that the forecast is wrong: its loss is certain."""

BETWEEN = ": "
"""What follows the candidate's name in a reason."""


LEAST_WINDOW_S = 10.0
"""Of a simulation: some exchanges of the computing jobs."""


ENOUGH_S = 1.0
"""Of a simulation that ran out of steps: what it tells of a shorter time is no ground for a decision."""


SHORTER = 2 / 3
"""A window that turns out to be longer than it need be by more than this is simulated again."""


class Futures(NamedTuple):
    """The future under each candidate, the time simulated, and the steps that are left."""

    of: dict[str, Future]
    window_s: float
    steps_left: int


class Foresee:
    """`candidates`: names, mappings of `name` and `options`, or lists of these, combined. `fallback`: one's number."""

    name = "foresee"
    acts_on = SETTINGS

    def __init__(
        self,
        candidates: Sequence[object] = CANDIDATES,
        objective: Objective = "stretch",
        horizon_s: float = 600.0,
        every_s: float = 5.0,
        gain: float = 0.02,
        fallback: int = 0,
        steps: int = 2000,
        most_flows: int = 256,
        hold_s: float = 60.0,
        style: RuleStyle = "labelled",
        seed: int = 0,
    ) -> None:
        if isinstance(candidates, str) or not 1 <= len(candidates) <= MOST:
            raise ValueError(f"candidates: give a list of 1 to {MOST} policies")
        if objective not in ("stretch", "makespan", "deadline"):
            raise ValueError(f"objective {objective!r}: use stretch, makespan or deadline")
        if not 0 < horizon_s <= 3600 or not 1 <= every_s <= 3600:
            raise ValueError(
                "horizon_s needs to be above 0 and every_s at least 1, both at most 3600 seconds"
            )
        if not 0 <= gain < 1:
            raise ValueError(f"gain of {gain}: give a share from 0 to below 1")
        if not 0 <= hold_s <= 86_400:
            raise ValueError(f"hold_s of {hold_s}: give 0 (never) to 86400 seconds")
        if not 0 <= fallback < len(candidates):
            raise ValueError(
                f"fallback {fallback}: give the number of a candidate, from 0 to {len(candidates) - 1}"
            )
        if not 1 <= steps <= 1_000_000 or not 1 <= most_flows <= 100_000:
            raise ValueError("steps needs to be 1 to 1,000,000 and most_flows 1 to 100,000")
        given: Mapping[str, Any] = {"style": style, "seed": seed}
        built = [_candidate(entry, given) for entry in candidates]
        self._candidates = dict(built)
        if len(self._candidates) < len(built):
            raise ValueError("candidates: each needs another name or members")
        self._fallback = built[fallback][0]
        self._objective, self._horizon_s, self._gain = objective, horizon_s, gain
        self._hold_ns = round(hold_s * 1e9)
        self._every_ns = round(every_s * 1e9)
        self._steps, self._most_flows = steps, most_flows

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        in_force = self._in_force(state)
        due = isinstance(event, LinkUse | FlowProgress) and state.time_ns - state.reason_ns >= self._every_ns
        if not (isinstance(event, DECISIONS) or (due and (state.jobs or state.flows))):
            return () if in_force is None else self._candidates[in_force](event, state)
        if state.live_topology is None:
            return ()
        if len(state.flows) > self._most_flows:
            return self._fall_back(event, state, in_force, f"more than {self._most_flows} flows")
        answers: dict[str, list[Action]] = {}
        kept: Kept = []
        order = dict.fromkeys([*([in_force] if in_force else []), self._fallback, *self._candidates])

        def wants(name: str) -> list[Action]:
            if name not in answers:
                answers[name] = self._answer(name, event, state, in_force)
            return answers[name]

        futures = self._futures(list(order), wants, state, kept)
        if futures is None:
            return self._fall_back(event, state, in_force, f"more than {self._steps} steps")
        values = {
            name: self._value(futures.of[name], state) for name in self._candidates if name in futures.of
        }
        best = min(values, key=lambda name: values[name])
        chosen = best
        if in_force in values and values[best][0] >= values[in_force][0] * (1 - self._gain):
            chosen = in_force
        told = ", ".join(f"{name} {value[0]:.4g}" for name, value in values.items())
        if len(values) < len(self._candidates):
            told += f"; {len(self._candidates) - len(values)} not foreseen"
        actions = wants(chosen)
        held, value = self._hold(chosen, actions, values[chosen], state, futures, kept)
        if held:
            actions = _holding(self._candidates[chosen], actions, held, state)
            told += f"; {len(held)} stagings held {value[0]:.4g}"
        if chosen == in_force and not actions and not due:
            return ()
        return Explained.by(actions, f"{chosen}{BETWEEN}{self._objective} foreseen: {told}")

    def _fall_back(self, event: Event, state: State, in_force: str | None, why: str) -> Sequence[Action]:
        """The fallback's answer; once it acts for this reason, at the cost of asking it alone."""
        told = f"{self._fallback}{BETWEEN}too much to foresee ({why})"
        if state.reason == told:
            return self._candidates[self._fallback](event, state)
        return Explained.by(self._answer(self._fallback, event, state, in_force), told)

    def _hold(
        self,
        name: str,
        actions: list[Action],
        value: tuple[float, float],
        state: State,
        futures: Futures,
        kept: Kept,
    ) -> tuple[frozenset[str], tuple[float, float]]:
        """The stagings that should wait while others go on, and the objective then; none where that gains nothing.

        Jobs that stage together over one bottleneck all end late; in turn, the shortest first, all but the last end
        sooner (Schrage, 1968). How many go on together depends on what else holds them: each number is tried.
        """
        flows: dict[str, str] = {
            flow.flow_id: flow.job_id
            for flow in state.flows.values()
            if flow.traffic == "staging" and flow.job_id and "pause" in flow.controls
        }
        young = {
            flow_id for flow_id in flows if state.time_ns - state.flows[flow_id].started_ns < self._hold_ns
        }
        best: frozenset[str] = frozenset()
        policy = self._candidates[name]
        if not young or "pause" in (acts_on(policy) or ()):
            return best, value
        # What is held already stays held unless going on is better: its loss has been taken.
        now = frozenset(flow_id for flow_id in young if state.flows[flow_id].wanted.paused)
        gain, steps = max(self._gain, HOLD_GAIN), futures.steps_left
        look = Forecast(state, horizon_s=futures.window_s, steps=steps, kept=kept)
        steps -= look.steps
        uses = look.seconds_alone(_holding(policy, actions, frozenset(), state))
        order = _order({job_id: uses.get(job_id, {}) for job_id in flows.values()})[:MOST]
        for count in range(1, len(order)):
            first = order[:count]
            held = frozenset(flow_id for flow_id in young if flows[flow_id] not in first)
            if not held or len(held) == len(flows):
                continue
            forecast = Forecast(state, horizon_s=futures.window_s, steps=steps, kept=kept)
            future = forecast.run(_in_turn(policy, order, count), _holding(policy, actions, held, state))
            steps -= future.steps
            if not future.complete:
                break
            found = self._value(future, state)
            if found[0] < value[0] * (1 + gain if held == now and not best else 1 - gain):
                best, value = held, found
        return best, value

    def _in_force(self, state: State) -> str | None:
        name = state.reason.partition(BETWEEN)[0]
        return name if name in self._candidates else None

    # -- what a candidate wants --------------------------------------------------------------------------

    def _answer(self, name: str, event: Event, state: State, in_force: str | None) -> list[Action]:
        """From what is in force: its answer to the event, with every held flow going on. Of another: what leads to all
        that it wants.
        """
        policy = self._candidates[name]
        held = [flow_id for flow_id, flow in state.flows.items() if flow.wanted.paused]
        if name == in_force and (not held or "pause" in (acts_on(policy) or ())):
            return list(policy(event, state))
        view = own_copy(state)
        if name == in_force:
            for flow_id in held:
                view.record_flow(Resume(flow_id=flow_id))
            _ask(policy, [event, *_occasions(state)], view)
            return _difference(state, view)
        view.requested = None
        for flow in view.flows.values():
            flow.wanted = FlowSettings()
        topology = [TopologyChanged(topology=state.topology)] if state.topology is not None else []
        _ask(policy, [*topology, *_occasions(state)], view)
        return _difference(state, view)

    # -- what it leads to --------------------------------------------------------------------------------

    def _futures(
        self, order: Sequence[str], wants: Callable[[str], list[Action]], state: State, kept: Kept
    ) -> Futures | None:
        """Of the candidates for which the steps suffice, in order; None where they suffice for none.

        All are simulated for the same time: see `_window_s`. Where a part of the steps does not suffice for that of the
        first, it is as long as these do.
        """
        look = Forecast(
            state, horizon_s=self._horizon_s, steps=max(1, self._steps // (len(order) + 1)), kept=kept
        )
        probe = look.run(self._candidates[order[0]], wants(order[0]), until_moved=True)
        left = self._steps - probe.steps
        if not probe.complete and probe.until_s < ENOUGH_S:
            return None
        window_s = self._window_s([probe]) if probe.complete else probe.until_s
        futures: dict[str, Future] = {}
        while True:
            found: dict[str, Future] = {}
            for name in futures or order:
                forecast = Forecast(state, horizon_s=window_s, steps=left, kept=kept)
                future = forecast.run(self._candidates[name], wants(name))
                left -= future.steps
                if not future.complete:
                    break
                found[name] = future
            if len(found) < len(futures):
                return Futures(futures, window_s, 0)
            if not found:
                return None
            futures = found
            shorter_s = self._window_s(futures.values())
            if shorter_s > SHORTER * window_s:
                return Futures(futures, window_s, left)
            window_s = shorter_s

    def _window_s(self, futures: Iterable[Future]) -> float:
        """Half as long again as the flows go on where they end soonest. Past that only computing jobs are left, of
        unknown length: a longer window would count them more and more, and the flows that the decision is about less
        and less.
        """
        last_s = min(max(future.ends_s.values(), default=0.0) for future in futures)
        return min(self._horizon_s, max(LEAST_WINDOW_S, 1.5 * last_s))

    def _value(self, future: Future, state: State) -> tuple[float, float]:
        """The objective, and what decides between equal ones."""
        # Progress adds up over jobs, and a job that is held for all of the window has made none: no infinite slowdown.
        progress = [1 / slowdown for slowdown in future.slowdown.values()]
        stretch = len(progress) / sum(progress) if progress else 1.0
        if self._objective == "stretch":
            return stretch, 0.0
        if self._objective == "makespan":
            return round(max(future.ends_s.values(), default=0.0), 3), stretch
        late = 0.0
        for flow_id, end_s in future.ends_s.items():
            flow = state.flows.get(flow_id)
            job = state.jobs.get(flow.job_id or "") if flow is not None else None
            if job is not None and job.due_ns:
                late += max(0.0, end_s - (job.due_ns - state.time_ns) / 1e9)
        return round(late, 3), stretch


def _candidate(entry: object, given: Mapping[str, Any]) -> tuple[str, Policy]:
    """A candidate with its name in reasons. Raises ValueError."""
    if isinstance(entry, list | tuple):
        names = [item if isinstance(item, str) else str(dict(item).get("name", "")) for item in entry]
        return "+".join(names), Combined(policies=entry, **given)
    policy = build(entry, given)
    return policy.name, policy


def _occasions(state: State) -> list[Event]:
    """Events at which policies of flows decide; nothing happens in them."""
    occasions: list[Event] = [FlowProgress(flows=())]
    newest = next(reversed(state.flows.values()), None)
    if newest is not None:
        occasions.insert(0, FlowStarted(flow_id=newest.flow_id, traffic=newest.traffic, engine=newest.engine))
    return occasions


def _ask(policy: Policy, occasions: Sequence[Event], view: State) -> None:
    """Fold what the policy wants on each occasion into `view`."""
    for occasion in occasions:
        _fold(policy(occasion, view), view)


def _fold(actions: Sequence[Action], view: State) -> None:
    for action in actions:
        if isinstance(action, AssignPaths):
            view.record_request(action)
        elif isinstance(action, FlowAction):
            view.record_flow(action)


def _holding(policy: Policy, actions: list[Action], held: frozenset[str], state: State) -> list[Action]:
    """The actions, with `held` paused and the others going on, and what the policy then wants of these."""
    view = own_copy(state)
    _fold(actions, view)
    for flow_id in view.flows:
        view.record_flow(Pause(flow_id=flow_id) if flow_id in held else Resume(flow_id=flow_id))
    _ask(policy, _occasions(state), view)
    return _difference(state, view)


def _order(uses: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Jobs in the order in which they go: the next is the one with which those so far would end soonest, by the resource
    that they use longest; of equal ones the shortest.
    """
    order: list[str] = []
    busy: dict[int, float] = {}

    def until(job_id: str) -> tuple[float, float, str]:
        alone = uses[job_id]
        together = max((busy.get(resource, 0.0) + s for resource, s in alone.items()), default=0.0)
        return max(together, *busy.values(), 0.0), max(alone.values(), default=0.0), job_id

    left = set(uses)
    while left:
        job_id = min(left, key=until)
        left.remove(job_id)
        order.append(job_id)
        for resource, seconds in uses[job_id].items():
            busy[resource] = busy.get(resource, 0.0) + seconds
    return order


def _in_turn(policy: Policy, order: Sequence[str], together: int) -> Answer:
    """The policy, and at every end foreseen the next of the held jobs go on, so that `together` jobs of `order` do."""

    def answer(event: Event, state: State) -> Sequence[Action]:
        staging = {flow.job_id for flow in state.flows.values() if flow.traffic == "staging"}
        first = [job_id for job_id in order if job_id in staging][:together]
        going_on = [
            Resume(flow_id=flow_id)
            for flow_id, flow in state.flows.items()
            if flow.wanted.paused and (flow.job_id in first or flow.job_id not in order)
        ]
        _fold(going_on, state)  # the forecast's own copy
        return [*going_on, *policy(event, state)]

    return answer


def _difference(state: State, view: State) -> list[Action]:
    """Actions that lead from what `state` asks for to what `view` does; a plan that `view` lacks stays."""
    actions: list[Action] = []
    if view.requested is not None and view.requested != state.requested:
        actions.append(AssignPaths(plan=view.requested))
    for flow_id, flow in state.flows.items():
        now, then = flow.wanted, view.flows[flow_id].wanted
        if now.rate_bps != then.rate_bps:
            actions.append(SetRate(flow_id=flow_id, rate_bps=then.rate_bps))
        if now.mode != then.mode:
            actions.append(SetMode(flow_id=flow_id, mode=then.mode))
        if now.loaders != then.loaders:
            actions.append(SetLoaders(flow_id=flow_id, loaders=then.loaders))
        if now.paused != then.paused:
            actions.append(Pause(flow_id=flow_id) if then.paused else Resume(flow_id=flow_id))
    return actions
