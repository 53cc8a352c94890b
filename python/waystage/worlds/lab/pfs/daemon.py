"""The process that serves one mount: `python -m waystage.worlds.lab.pfs.daemon`, its order on stdin.

Arrives: an `MountConfig` as JSON on stdin; SIGTERM.
Leaves: a line on stdout, `ready` or `error: ...`; a mounted file system until it ends.
Must not know: who gave the order.

It ends when the file system is unmounted, and unmounts it on SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from waystage._native import EmulatedFileSystem, PfsError
from waystage.experiment.problems import ExperimentError
from waystage.worlds.lab.commands import run
from waystage.worlds.lab.daemons import READY, read_order, report
from waystage.worlds.lab.pfs.mountinfo import SOURCE
from waystage.worlds.lab.pfs.shape import MountConfig, native, sizes

ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
CHECK_S = 0.2
"""Interval at which it checks whether the file system is still mounted."""


def main() -> int:
    # Blocked before there are threads, so that none of them takes a signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    os.setgroups([])  # threads that serve a user have no group of root's
    order = msgspec.json.decode(read_order(), type=MountConfig)
    point = Path(order.point)
    folder = None if order.folder is None else Path(order.folder)
    try:
        made_up = sizes(order.shape) if folder is None else None
        name = f"{SOURCE}{order.shape.name}"
        serving = EmulatedFileSystem(point, name, native(order.shape, folder, order.shared), made_up)
    except (PfsError, ExperimentError) as error:
        return report(f"error: {error}")
    if order.shape.client.pages == "kept":
        _read_ahead(point, order.shape.client.read_ahead)
    report(READY)
    device = os.stat(point).st_dev
    while _device(point) == device and not serving.ended():
        got = signal.sigtimedwait(ENDING, CHECK_S)
        # Where SIGCONT ends the wait after the timeout, CPython returns what is no signal.
        if got is not None and got.si_signo in ENDING:
            # Programs that use it keep their open files until this process ends.
            run(["umount", "--lazy", str(point)], check=False)
    # Another mount namespace may have a copy, for which the kernel would have this process serve on; to end the proper
    # way would wait for it.
    os._exit(0)


def _device(point: Path) -> int:
    """What is mounted on `point`, or is below. The kernel's list of mounts is not used: it can omit entries while
    others mount."""
    try:
        return os.stat(point).st_dev
    except OSError:
        return -1


def _read_ahead(point: Path, amount: int) -> None:
    """How far the kernel reads ahead; it proposes 128 KiB to every FUSE file system, and takes more only here."""
    device = os.stat(point).st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        knob.write_text(f"{amount >> 10}\n", encoding="ascii")
    except OSError as error:
        print(f"reading ahead stays at the kernel's value: {error}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
