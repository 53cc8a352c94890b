"""What follows from the end of an engine: done, another attempt, or failed.

Arrives: how an engine ended, the history of its request, the time.
Leaves: the next state, when to try again, one sentence for the user.
Must not know: processes, SQLite.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from waystage.staging.requests import Request

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Delay before another attempt: after the first fruitless one, doubling, and at most."""

MOST_FRUITLESS = 10
"""Attempts in succession that moved nothing, where the engine died or the reason is not known to pass."""

MOST_CHANGED = 3
"""Attempts at a source that changes while it is read."""

PASSING = frozenset({"lost", "unreachable", "turned-away", "busy"})
"""Kinds of errors that time may fix: the far end is waited for."""

UNCERTAIN = frozenset({"failed", "died", "stopped", "ssh"})
"""Kinds of errors that another attempt may fix, or not."""

CHANGED = "changed"

REMEDIES = {
    "no-space": "; make room, then submit the request again: it resumes",
    "untrusted": "; trust the server's key once with `waystage copy`, or give --server-key",
}


class Ended(msgspec.Struct, frozen=True):
    """The end of an engine. `kind` is empty for success, else that of its error; `moved` is whether it wrote anything."""

    kind: str = ""
    text: str = ""
    warning: str = ""
    moved: bool = False


class Verdict(msgspec.Struct, frozen=True):
    state: Literal["done", "queued", "failed"]
    text: str = ""
    cause: str = ""
    """Of `queued`: why the attempt ended."""
    not_before_ns: int = 0
    fruitless: int = 0
    fruitless_since_ns: int = 0


def judge(request: Request, ended: Ended, retry_for_s: float, now_ns: int) -> Verdict:
    """What becomes of `request`, whose engine has ended so.

    `fruitless` counts the attempts in succession that moved nothing, and those at a source that changes.
    """
    if not ended.kind:
        return Verdict("done")
    # The engine speaks to those who gave a command: here it is a request.
    text = ended.text.partition(": make room, ")[0] + REMEDIES.get(ended.kind, "")
    fresh = ended.moved and ended.kind != CHANGED
    fruitless = 1 if fresh else request.fruitless + 1
    since = now_ns if fresh or not request.fruitless else request.fruitless_since_ns
    waited_s = (now_ns - since) / 1e9
    if ended.kind in PASSING:
        again = waited_s < retry_for_s
        if not again:
            text = f"{text}; given up after {waited_s:.0f} s of attempts"
    elif ended.kind in UNCERTAIN:
        again = fruitless < MOST_FRUITLESS
        if not again:
            text = f"{text}; given up after {fruitless} attempts in succession that moved nothing"
    elif ended.kind == CHANGED:
        again = fruitless < MOST_CHANGED
        if not again:
            text = f"the source changed during each of {fruitless} attempts: {text}; submit again when it is at rest"
    else:
        again = False
    if not again:
        return Verdict("failed", text, fruitless=fruitless, fruitless_since_ns=since)
    pause_s = min(FIRST_PAUSE_S * 2 ** min(fruitless - 1, 16), LONGEST_PAUSE_S)
    return Verdict(
        "queued",
        f"{text}; attempt {request.attempts + 1} follows within {pause_s:.0f} s",
        text,
        now_ns + int(pause_s * 1e9),
        fruitless,
        since,
    )
