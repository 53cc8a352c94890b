"""Messages between a controller and the process of a user's policy.

Arrives: kinds and payloads; bytes of the other process, which are foreign.
Leaves: frames; kinds and payloads within bounds.
Must not know: policies, processes.

A frame is a byte for its kind, the length of its payload in four bytes, and the payload.
"""

from __future__ import annotations

import socket
import struct
import time

STATE, FOLD, RECORD, ASK, ANSWER_HELD = b"S", b"F", b"R", b"A", b"H"
"""To the process: a snapshot; an envelope to fold; actions to record; an envelope to fold and answer; an envelope to
answer that the snapshot has already."""

READY, ANSWER, FAILED, BROKEN = b"N", b"O", b"E", b"X"
"""From the process: its name; actions and a reason; the policy raised; the process ends for this reason."""

HEADER = struct.Struct("!cI")

MOST_BYTES = 16 << 20
"""Of an answer: a plan with listed paths for thousands of pairs is about 1 MB."""


class WireError(Exception):
    """The other process is gone, silent, or does not speak this protocol; the message says which."""


class Silent(WireError):
    """It did not answer in time."""


def frame(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def send(to: socket.socket, data: bytes, until: float) -> None:
    """Raises WireError where the process is gone or reads nothing until then, on the monotonic clock in s."""
    to.settimeout(max(0.001, until - time.monotonic()))
    try:
        to.sendall(data)
    except TimeoutError:
        raise Silent from None
    except OSError as error:
        raise WireError(f"is gone ({error.strerror})") from None


def receive(of: socket.socket, until: float, most: int = MOST_BYTES) -> tuple[bytes, bytes]:
    """The next message. Raises WireError."""
    kind, length = HEADER.unpack(_exactly(of, HEADER.size, until))
    if length > most:
        raise WireError(f"answered with {length:,} bytes, and {most:,} are taken")
    return kind, _exactly(of, length, until)


def _exactly(of: socket.socket, count: int, until: float) -> bytes:
    parts: list[bytes] = []
    while count:
        of.settimeout(max(0.001, until - time.monotonic()))
        try:
            part = of.recv(min(count, 1 << 20))
        except TimeoutError:
            raise Silent from None
        except OSError as error:
            raise WireError(f"is gone ({error.strerror})") from None
        if not part:
            raise WireError("is gone")
        if time.monotonic() > until:
            raise Silent
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
