"""What a run of policies shows, in one sentence.

Arrives: a `RunResult` and its summary.
Leaves: the sentence, with its uncertainty and whether the run is valid.
Must not know: how it is printed.
"""

from __future__ import annotations

from waystage.experiment.results import RunResult
from waystage.experiment.summary import Comparison, Estimate, Summary


def verdict(result: RunResult, summary: Summary) -> str:
    """One sentence: each policy against the baseline, with interval or range; then what limits its validity."""
    parts = [_compared(comparison) for comparison in summary.comparisons]
    if not parts:
        parts = [
            f"under {policy}, the mean job time is {times['job'].value:.2f} s{_spread(times['job'], 's', 2)}"
            for policy, times in summary.times_s.items()
        ]
    if not parts:
        parts = ["no job has ended"]
    sentence = "; ".join([*parts, _validity(result)])
    return sentence[0].upper() + sentence[1:] + "."


def _compared(comparison: Comparison) -> str:
    change = comparison.reduction_pct.get("job")
    policy, baseline = comparison.policy, comparison.baseline
    if change is None:
        return f"against {baseline}, {policy} has no job time to compare"
    spread = _spread(change, "%", 1)
    better = round(comparison.improved_share.value * comparison.sets)
    sets = f"{better} of {comparison.sets} sets are faster" if comparison.sets > 1 else "there is one set"
    if change.low is not None and change.high is not None and change.low <= 0.0 <= change.high:
        return (
            f"against {baseline}, {policy} shows no clear difference in mean job time:"
            f" {abs(change.value):.1f} % {'shorter' if change.value >= 0 else 'longer'}{spread}, {sets}"
        )
    way = "shortens" if change.value > 0 else "lengthens"
    return (
        f"against {baseline}, {policy} {way} the mean job time by {abs(change.value):.1f} %{spread}; {sets}"
    )


def _spread(estimate: Estimate, unit: str, digits: int) -> str:
    """In brackets: the interval, the range where there are too few sets for one, or that there is neither."""
    if estimate.low is None or estimate.high is None:
        return " (one set: no interval)"
    low, high = sorted((estimate.low, estimate.high))
    if estimate.value < 0:
        low, high = -high, -low
    kind = (
        f"range of {estimate.count} sets" if estimate.is_range else f"95 % interval of {estimate.count} sets"
    )
    return f" ({kind}: {low:.{digits}f} to {high:.{digits}f} {unit})"


def _validity(result: RunResult) -> str:
    failed = sum(1 for job in result.jobs if job.status == "failed")
    limits = []
    if result.invalid:
        limits.append("the run is NOT VALID, for the reason below")
    if result.interrupted:
        limits.append("it was interrupted")
    if result.failure:
        limits.append("it ended early")
    if failed:
        limits.append(f"{failed} {'job has' if failed == 1 else 'jobs have'} failed")
    if limits:
        return ", and ".join(limits)
    return "the run is valid" + (" (simulated)" if result.world == "sim" else "")
