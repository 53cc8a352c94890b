"""Paths between two namespaces: brought up, looked into, changed, taken down.

Arrives: a name, a profile.
Leaves: a process that carries packets between two namespaces; afterwards nothing.
Must not know: how packets are carried.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from waystage.worlds.lab import daemons
from waystage.worlds.lab.commands import environment, require, require_root, run
from waystage.worlds.lab.errors import LabBusy, LabError, MissingProgram
from waystage.worlds.lab.lock import LabLock
from waystage.worlds.lab.processes import uninterrupted
from waystage.worlds.lab.resources import netns_is_mounted
from waystage.worlds.lab.wan import control
from waystage.worlds.lab.wan.control import PathConfig
from waystage.worlds.lab.wan.daemon import STAY
from waystage.worlds.lab.wan.profile import WAYS, Profile, Way
from waystage.worlds.lab.wan.resources import DEVICE, SIDES, PathResources, Record, root

READY_S = 60.0
LEAST_IPV6_MTU = 1280
"""RFC 8200, section 5: below it a device has no IPv6."""

IPV4 = {"left": "10.58.0.1", "right": "10.58.0.2"}
IPV6 = {"left": "fd58::1", "right": "fd58::2"}

QUEUE_PACKETS = 10_000
"""Frames that may wait for the process to read them: some 100 ms at 1 Gbit/s. What finds it full is counted as overflow."""

TCP_BUFFER_BYTES = 256 << 20
"""Bytes that TCP may have in flight: the path limits a peer, not its own buffers."""


def up(name: str, profile: Profile, *, device_mtu: int | None = None) -> PathResources:
    """Bring a path up, or raise and leave nothing. It stays until `down`.

    Raises NotRoot, MissingProgram, LabBusy (it is up, or another command changes it), LabError.
    """
    require_root("a path between namespaces")
    require("ip", "nsenter", "setpriv")
    if not os.path.exists("/dev/net/tun"):
        raise MissingProgram(
            "/dev/net/tun is not there: load it with `modprobe tun`, and give it to a container with "
            "--device /dev/net/tun --cap-add NET_ADMIN"
        )
    resources = PathResources(name)
    with _claimed(resources):
        record = resources.read()
        if record is not None and record.up and alive(resources):
            raise LabBusy(f"path '{name}' is up already: take it down with `waystage lab wan down {name}`")
        with uninterrupted():
            resources.remove_all()
        try:
            _build(resources, profile, device_mtu)
        except BaseException:
            with uninterrupted():
                resources.remove_all()
            raise
    return resources


def down(name: str) -> bool:
    """Remove a path by its name alone, also one of a process that was killed; whether anything was removed."""
    resources = PathResources(name)
    if not resources.anything_left:
        resources.lock.unlink(missing_ok=True)
        return False
    record = resources.read()
    if record is None or record.kind != "relay":
        require_root("taking a path down")
    with _claimed(resources), uninterrupted():
        resources.remove_all()
    return True


def known() -> list[tuple[PathResources, Record]]:
    """Every path of this user's that has a record."""
    found = []
    for folder in sorted(root().glob("*/record.json")):
        resources = PathResources(folder.parent.name)
        record = resources.read()
        if record is not None:
            found.append((resources, record))
    return found


def find(name: str) -> PathResources:
    """A path that is up. Raises LabError where there is none, or its process has died."""
    resources = PathResources(name)
    record = resources.read()
    if record is None or not record.up:
        raise LabError(f"there is no path '{name}': bring it up with `waystage lab wan up {name}`")
    if not alive(resources):
        raise LabError(
            f"the process of path '{name}' has died: `waystage lab wan down {name}` removes what is left"
        )
    return resources


def alive(resources: PathResources) -> bool:
    process = resources.process
    return process is not None and process.alive


def status(name: str) -> dict[str, Any]:
    """What a path is like, and what it counted. Raises LabError."""
    return control.ask(find(name).control, {"do": "status"})


def change(name: str, options: dict[str, str], ways: Sequence[Way] = WAYS) -> dict[str, Any]:
    """Make a path another, for packets that come from now on; its status after that. Raises LabError."""
    return control.ask(find(name).control, {"do": "set", "ways": list(ways), "options": options})


def enter(name: str, side: str) -> list[str]:
    """The words before a command that run it at an end of a path. Raises LabError."""
    words = find(name).enter(side)
    require_root("entering an end of a path")
    return words


def start(name: str, side: str, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
    """Start a program at an end of a path, in a new session; keywords are those of `subprocess.Popen`."""
    options: dict[str, Any] = {"start_new_session": True, "env": environment(), **popen}
    return subprocess.Popen([*enter(name, side), *argv], **options)


def _build(resources: PathResources, profile: Profile, device_mtu: int | None) -> None:
    record = Record(
        name=resources.name, kind="namespaces", unmount_netns=not netns_is_mounted(), about=profile.name
    )
    resources.folder.mkdir(mode=0o755, parents=True)
    resources.write(record)
    namespaces = tuple(resources.namespace(side) for side in SIDES)
    run(["ip", "-batch", "-"], text_in="".join(f"netns add {n}\n" for n in namespaces))
    told = PathConfig(
        name=resources.name,
        folder=str(resources.folder),
        namespaces=(namespaces[0], namespaces[1]),
        profile=profile,
    )
    process = daemons.start(
        "waystage.worlds.lab.wan.daemon",
        msgspec.msgpack.encode(told),
        resources.log,
        name=f"path '{resources.name}'",
        limit_s=READY_S,
    )
    try:
        mtu = device_mtu or profile.mtu
        for side, other in zip(SIDES, reversed(SIDES), strict=True):
            run([*resources.enter(side), "sh", "-s"], text_in=_end_script(side, other, mtu))
        resources.write(msgspec.structs.replace(record, up=True))
        assert process.stdin is not None
        process.stdin.write(STAY)
        process.stdin.close()
    except BaseException:
        process.kill()
        process.wait()
        raise


def _end_script(side: str, other: str, mtu: int) -> str:
    """For `sh` in an end's namespace: addresses, and no packets that no program sent."""
    ipv6 = mtu >= LEAST_IPV6_MTU and os.path.exists("/proc/net/if_inet6")
    conf = f"/proc/sys/net/ipv6/conf/{DEVICE}"
    lines = ["set -e"]
    if ipv6:
        lines += [f"echo 1 > {conf}/addr_gen_mode", f"echo 0 > {conf}/accept_ra"]
        lines += [f"echo 0 > {conf}/router_solicitations"]
    lines += [
        # What one flow learned must not shape the next one's start.
        "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save",
        f"echo '4096 131072 {TCP_BUFFER_BYTES}' > /proc/sys/net/ipv4/tcp_rmem",
        f"echo '4096 131072 {TCP_BUFFER_BYTES}' > /proc/sys/net/ipv4/tcp_wmem",
        "ip -batch - <<END",
        "link set lo up",
        f"link set {DEVICE} mtu {mtu} txqueuelen {QUEUE_PACKETS} multicast off",
        f"addr add {IPV4[side]} peer {IPV4[other]} dev {DEVICE}",
        *([f"addr add {IPV6[side]} peer {IPV6[other]} dev {DEVICE} nodad"] if ipv6 else []),
        f"link set {DEVICE} up",
        *([f"route add {IPV6[other]} dev {DEVICE}"] if ipv6 else []),
        "END",
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def _claimed(resources: PathResources) -> Iterator[None]:
    try:
        with LabLock(resources.lock, resources.name):
            yield
    except LabBusy as error:
        if "is held by process" not in str(error):
            raise
        raise LabBusy(
            f"path '{resources.name}' is being brought up or taken down by another process: wait, or use another name"
        ) from None
