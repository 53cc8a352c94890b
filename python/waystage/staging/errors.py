"""What can go wrong between a client and the stager.

Arrives: a sentence and its kind.
Leaves: exceptions that the command line maps to exit codes.
Must not know: the command line.
"""

from __future__ import annotations


class StagingError(RuntimeError):
    """A request that the stager refuses, or a stager that cannot run; the message is written for the user."""


class Unreachable(StagingError):
    """No stager answers at the socket."""


class Refused(StagingError):
    """A submission or query that is not allowed or not meaningful."""


class QuotaExceeded(StagingError):
    """The user has as many requests as allowed."""


class Invalid(StagingError):
    """A submission with a wrong value."""


KINDS: dict[str, type[StagingError]] = {
    "unreachable": Unreachable,
    "refused": Refused,
    "quota": QuotaExceeded,
    "invalid": Invalid,
    "failed": StagingError,
}
"""Kinds of answers on the socket and their exceptions."""


def kind_of(error: StagingError) -> str:
    """The kind under which an error crosses the socket."""
    return next(kind for kind, each in KINDS.items() if type(error) is each)
