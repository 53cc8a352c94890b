"""A process of a node that holds pieces of coupled names, for tests of coupling."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waystage.io.library import path

TOKEN = "5a" * 32
INCLUDE = Path(__file__).parents[1] / "shim" / "include"

HOST = """
import sys
from pathlib import Path
from waystage._native import CouplingService
service = CouplingService(Path(sys.argv[1]), sys.argv[2], listen="127.0.0.1:0", host=sys.argv[3] or None)
print("ready", flush=True)
sys.stdin.read()
service.stop()
"""


@dataclass(frozen=True)
class Node:
    """The process of a node, and the environment of its ranks."""

    process: subprocess.Popen[str]
    environment: Mapping[str, str]

    def python(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """A rank that runs a program in Python."""
        return self.command(sys.executable, "-c", program, *arguments)

    def command(self, *command: str) -> subprocess.Popen[str]:
        """A rank that runs a command."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env={**os.environ, **self.environment}, **pipes)


@contextmanager
def node(folder: Path, *, name: str = "node", host: str = "") -> Iterator[Node]:
    """A process of a node in a scratch folder; `host` other than this one makes readers use TCP."""
    socket = folder / name
    command = [sys.executable, "-c", HOST, f"{socket}.coupling", TOKEN, host]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            environment = {
                "WAYSTAGE_IO_SOCKET": str(socket),
                "WAYSTAGE_IO_TOKEN": TOKEN,
                "WAYSTAGE_COUPLING": str(folder / "names"),
            }
            yield Node(process, environment)
        finally:
            process.kill()


def finished(process: subprocess.Popen[str]) -> str:
    """What a rank printed; AssertionError with its errors where it failed."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err + out
    return out


def compiled(source: Path, to: Path) -> Path:
    """A C program that is linked with the library alone."""
    library = path()
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    linked = [str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run(["cc", *options, str(source), *linked, "-o", str(to)], check=True)
    return to
