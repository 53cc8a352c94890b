"""What the tests of emulated paths share: datagrams with numbers sent across a path, and which of them came."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import WAIT_S
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

Up = Callable[..., str]
"""`up(loss="1%", seed=2)` brings a path up, and returns its name."""


RECEIVER = """
import json, select, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE: past the limit of the machine
s.bind(("10.58.0.2", 7000))
print("ready", flush=True)
came, last = [], 0.0
while True:
    readable, _, _ = select.select([s, sys.stdin], [], [])
    if s in readable:
        data = s.recv(2000)
        last = time.monotonic()
        came.append(int.from_bytes(data[:4], "big"))
    elif readable and not select.select([s], [], [], 0.3)[0]:
        break  # a packet that has left the path may be on its way through the kernel
print(json.dumps([came, last]))
"""

SENDER = """
import socket, sys, time
count, size = int(sys.argv[1]), int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.58.0.2", 7000))
print(time.monotonic())
for number in range(count):
    s.send(number.to_bytes(4, "big") + bytes(size - 4))
    if number % 50 == 49:
        time.sleep(0.002)
"""


def python(path: str, side: str, program: str, *arguments: object, **popen: Any) -> subprocess.Popen[str]:
    """A program at an end of a path, which starts at once since it imports nothing."""
    argv = [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)]
    process: subprocess.Popen[str] = paths.start(path, side, argv, text=True, **popen)
    return process


def ping(path: str, *arguments: str) -> tuple[int, str]:
    """From left to right; status and output."""
    done = paths.start(
        path,
        "left",
        ["ping", *arguments, "10.58.0.2"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = done.communicate(timeout=WAIT_S)
    return done.returncode, out


def settled(path: str, packets: int) -> dict[str, Any]:
    """The direction forward, once `packets` have come and none is in flight."""
    deadline = time.monotonic() + WAIT_S
    while True:
        forward: dict[str, Any] = wan.status(path)["directions"]["forward"]
        if forward["in"] >= packets and forward["under_way"] == 0:
            return forward
        assert time.monotonic() < deadline, forward
        time.sleep(0.02)


def send(path: str, count: int, size: int = 100) -> tuple[list[int], dict[str, Any], float]:
    """`count` datagrams from left to right: the numbers that came, in order; the direction's counts; the seconds taken."""
    before = wan.status(path)["directions"]["forward"]["in"]
    receiver = python(path, "right", RECEIVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert receiver.stdin is not None and receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = python(path, "left", SENDER, count, size, stdout=subprocess.PIPE)
    began, _ = sender.communicate(timeout=WAIT_S)
    forward = settled(path, before + count)
    out, _ = receiver.communicate(timeout=WAIT_S)
    came, last = json.loads(out)
    return came, forward, last - float(began)
