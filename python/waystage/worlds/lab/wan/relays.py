"""A relay of UDP datagrams over an emulated path, in this process, without root.

Arrives: where clients send to, where datagrams go, a profile.
Leaves: datagrams at the target, and answers, until a request or signal ends it; the final counts.
Must not know: what is in a datagram.
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from waystage._native import EmulatedPath, WanPathError
from waystage.experiment.problems import Problem
from waystage.worlds.lab.errors import LabBusy, LabError
from waystage.worlds.lab.processes import uninterrupted
from waystage.worlds.lab.wan.profile import Profile, native
from waystage.worlds.lab.wan.resources import PathResources, Record, make_root
from waystage.worlds.lab.wan.serving import Serving, first_in_line, listen, work


def run(name: str, at: str, to: str, profile: Profile, ready: Callable[[str], None]) -> dict[str, Any]:
    """Relay until a request or a signal ends it, then give the final status; `ready` is called with the address where it listens.

    Raises Problem, LabBusy where the name is in use, LabError.
    """
    near, far = address("listen", at), address("to", to)
    resources = PathResources(name)
    _claim(resources)
    try:
        resources.note_process()
        record = Record(name=name, kind="relay", about=f"{near} to {far}")
        resources.write(record)
        try:
            with first_in_line():
                path, where = EmulatedPath.relay(
                    near, far, native(profile, "forward"), native(profile, "back"), work(profile)
                )
        except WanPathError as error:
            raise LabError(f"relay '{name}': {error}") from None
        try:
            with listen(resources.folder) as listener:
                serving = Serving(path, profile, {"name": name, "kind": "relay", "listens": where, "to": far})
                with serving.until_told():
                    resources.write(msgspec.structs.replace(record, up=True, about=f"{where} to {far}"))
                    ready(where)
                    serving.serve(listener)
        finally:
            path.end()
        return serving.status()
    finally:
        with uninterrupted():
            shutil.rmtree(resources.folder, ignore_errors=True)


def address(option: str, text: str) -> str:
    """`HOST:PORT` with the host's address; `[::1]:5000` for IPv6. Raises Problem."""
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not port.isdecimal()
        or not 0 <= int(port) <= 65535
        or (option == "to" and int(port) == 0)
    ):
        raise Problem((option,), f"{text} is no address: write ADDRESS:PORT, such as 127.0.0.1:5000")
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        try:
            found = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
        except OSError as error:
            raise Problem((option,), f"{host} has no address: {error.strerror}") from None
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def _claim(resources: PathResources) -> None:
    """Make the folder, which one process at a time can; one whose process has died is taken away."""
    make_root().mkdir(mode=0o755, exist_ok=True)
    try:
        resources.folder.mkdir(mode=0o700)
        return
    except FileExistsError:
        process = resources.process
    if process is None or process.alive or resources.namespace_files():
        raise LabBusy(
            f"path '{resources.name}' is there already: take it down with `waystage lab wan down {resources.name}`, "
            "or use another --name"
        )
    shutil.rmtree(resources.folder, ignore_errors=True)
    resources.folder.mkdir(mode=0o700)
