"""What flows move becomes the demand of their jobs, and never replaces what a user declared."""

from __future__ import annotations

from waystage.controllers.demand_meter import DemandMeter
from waystage.events import (
    DemandDeclared,
    Envelope,
    Event,
    FlowFinished,
    FlowProgress,
    FlowStarted,
    FlowUse,
    JobFinished,
    JobStarted,
)
from waystage.state import State

GIGABIT = 10**9


class Site:
    """A state, whose time goes on by a second with each round of measuring."""

    def __init__(self) -> None:
        self.state, self.meter = State(), DemandMeter(lambda event: None)
        self.said: list[DemandDeclared] = []
        self.tell(JobStarted(job_id="1", nodes=("c1",)), JobStarted(job_id="2", nodes=("c2",)))

    def tell(self, *events: Event) -> None:
        for event in events:
            time_ns = self.state.time_ns + 1
            self.state.apply(Envelope(event=event, event_id=str(time_ns), time_ns=time_ns))

    def start(self, flow_id: str, job_id: str | None, traffic: str = "staging") -> None:
        self.tell(FlowStarted(flow_id=flow_id, traffic=traffic, engine="copy", job_id=job_id))  # type: ignore[arg-type]

    def second(self, limited_by: str = "", **rates: int) -> list[DemandDeclared]:
        """Progress of these flows; what is declared upon it, which the state learns."""
        uses = [FlowUse(flow_id=name, rate_bps=rate, limited_by=limited_by) for name, rate in rates.items()]
        self.tell(FlowProgress(flows=tuple(uses)))
        found = self.meter.measure(self.state)
        self.tell(*found)
        return found

    def demand(self, job_id: str) -> dict[str, int]:
        return dict(self.state.jobs[job_id].demand_bps)


def test_rates_add_up_by_job_and_class_and_end_with_their_flows() -> None:
    site = Site()
    site.start("a", "1")
    site.start("b", "1")
    site.start("c", "1", "wan")
    site.start("d", "2")
    site.start("e", None)
    site.start("f", "unknown")
    site.second(a=GIGABIT, b=2 * GIGABIT, c=GIGABIT, d=5 * GIGABIT, e=GIGABIT, f=GIGABIT)
    assert site.demand("1") == {"staging": 3 * GIGABIT, "wan": GIGABIT}
    assert site.demand("2") == {"staging": 5 * GIGABIT}
    assert "unknown" not in site.state.jobs
    site.tell(*(FlowFinished(flow_id=name) for name in "abc"))
    site.second(d=5 * GIGABIT)
    assert site.demand("1") == {} and site.demand("2") == {"staging": 5 * GIGABIT}


def test_noise_is_not_published_and_a_step_is_within_seconds() -> None:
    site = Site()
    site.start("a", "1")
    site.second(a=GIGABIT)
    for percent in (105, 96, 102, 97) * 5:
        assert site.second(a=percent * GIGABIT // 100) == []
    said = [event for _ in range(12) for event in site.second(a=3 * GIGABIT)]
    assert 2.7 * GIGABIT < site.demand("1")["staging"] <= 3 * GIGABIT
    assert 1 < len(said) < 10 and all(event.measured for event in said)


def test_what_a_user_declared_stands_until_withdrawn() -> None:
    site = Site()
    site.start("a", "1")
    site.tell(DemandDeclared(job_id="1", traffic="staging", rate_bps=7))
    assert site.second(a=GIGABIT) == []
    site.tell(DemandDeclared(job_id="1", traffic="staging", rate_bps=9, measured=True))
    assert site.demand("1") == {"staging": 7}
    site.tell(DemandDeclared(job_id="1", traffic="staging", rate_bps=0))
    site.second(a=GIGABIT)
    assert site.demand("1") == {"staging": GIGABIT}
    site.tell(DemandDeclared(job_id="1", traffic="staging", rate_bps=7))
    assert site.demand("1") == {"staging": 7}


def test_a_flow_that_is_limited_keeps_its_demand() -> None:
    site = Site()
    site.start("a", "1")
    site.second(a=GIGABIT)
    for _ in range(30):
        site.second(limited_by="paused", a=0)
        site.second(limited_by="rate", a=1000)
    assert site.demand("1") == {"staging": GIGABIT}
    for _ in range(60):
        site.second(a=10)
    assert site.demand("1") == {}, "slow by itself"


def test_a_restarted_controller_goes_on_and_withdraws() -> None:
    site = Site()
    site.start("a", "1")
    site.second(a=GIGABIT)
    site.meter = DemandMeter(lambda event: None)
    assert site.second(a=GIGABIT) == []
    site.meter = DemandMeter(lambda event: None)
    site.tell(FlowFinished(flow_id="a"))
    assert [event.rate_bps for event in site.second()] == [0]
    site.tell(JobFinished(job_id="1"))
    assert site.second() == []
