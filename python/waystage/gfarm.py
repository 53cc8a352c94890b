"""Gfarm's own commands, and what their failures mean.

Arrives: arguments of a command of the package gfarm-client; paths below a gfarm2fs mount, or `gfarm:` URLs.
Leaves: their output, or one sentence that says which part of Gfarm refuses, and how to fix it.
Must not know: trees, layouts, labs.

Clients of Gfarm retry "no filesystem node" for half a minute: a key that differs and a gfsd that is not registered
both end so. `why_no_node` tells them apart by what the metadata server knows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PATH_ATTRIBUTE = "gfarm2fs.path"
"""What gfarm2fs answers with the path in Gfarm."""

TIMEOUT_S = 600.0
CHECK_TIMEOUT_S = 20.0

NO_NODE = "no filesystem node"


class GfarmError(RuntimeError):
    """Gfarm refuses or cannot be reached; the message is one sentence for the user."""


class GfarmMissing(GfarmError):
    """Gfarm's commands are not installed."""


def path_in_gfarm(given: str | Path) -> str:
    """The path that Gfarm has for a path below a gfarm2fs mount, or for a `gfarm:` URL. Raises GfarmError."""
    text = os.fspath(given)
    if text.startswith("gfarm:"):
        rest = text.removeprefix("gfarm:")
        if not rest.startswith("/"):
            raise GfarmError(f"{text}: give the path from Gfarm's root, e.g. gfarm:/home/user")
        return text if rest.startswith("//") else rest
    try:
        return os.fsdecode(os.getxattr(given, PATH_ATTRIBUTE))
    except FileNotFoundError:
        raise GfarmError(f"{text} does not exist") from None
    except OSError:
        raise GfarmError(
            f"{text} is not on Gfarm: give a path below a gfarm2fs mount, or gfarm:/PATH"
        ) from None


def run_tool(
    *command: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    text_in: str | None = None,
    check: bool = True,
) -> str:
    """The output of one of Gfarm's commands. Raises GfarmError with its reason, GfarmMissing where there is none."""
    program = shutil.which(command[0])
    if program is None:
        raise GfarmMissing(f"{command[0]} is not installed: apt-get install gfarm-client")
    process = subprocess.Popen(
        [program, *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
    )
    try:
        out, errors = process.communicate((text_in or "").encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        if NO_NODE in errors.decode(errors="replace"):
            raise GfarmError(why_no_node(env)) from None
        raise GfarmError(f"{command[0]} did not end within {timeout_s:.0f} s") from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    if check and process.returncode != 0:
        raise GfarmError(explained(_reason(command[0], errors), env))
    return out.decode(errors="surrogateescape")


def _reason(program: str, errors: bytes) -> str:
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    # The library reports each retry before the command reports the failure.
    told = [line for line in lines if "<info>" not in line and "<notice>" not in line]
    return (told or lines or [f"{program} failed"])[-1].removeprefix(f"{program}: ")


def explained(reason: str, env: Mapping[str, str] | None = None) -> str:
    """A reason that Gfarm gives, with what to do about it."""
    if NO_NODE in reason:
        return why_no_node(env)
    if "authentication error" in reason or "authentication" in reason.lower():
        return (
            f"Gfarm: {reason}: this user's key is not the one that the metadata server has; copy the file named by "
            f"shared_key_file in {_config(env)} (usually ~/.gfarm_shared_key) from a host where Gfarm works"
        )
    if "connection refused" in reason or "timed out" in reason:
        return f"Gfarm: {reason}: the metadata server of {_config(env)} does not answer: start gfmd, or correct its address"
    if "cannot open gfarm2.conf" in reason:
        return "Gfarm: there is no /etc/gfarm2.conf: install it, or name one in GFARM_CONFIG_FILE"
    return f"Gfarm: {reason}"


def why_no_node(env: Mapping[str, str] | None = None, wanted: Sequence[str] = ()) -> str:
    """Why Gfarm finds no node to read from or write to: none is registered, or none is connected."""
    try:
        registered = nodes(env)
        connected = connected_nodes(env)
    except GfarmError as error:
        return str(error)
    for host in wanted:
        if host not in registered:
            return (
                f"Gfarm: {host} is not registered with the metadata server, which knows "
                f"{', '.join(registered) or 'no node'}: register it with gfhost -c -a ARCHITECTURE -p PORT -n CPUS {host}"
            )
    if not registered:
        return (
            "Gfarm: no filesystem node is registered with the metadata server: register each host that runs gfsd with "
            "gfhost -c -a ARCHITECTURE -p PORT -n CPUS HOST"
        )
    absent = [host for host in (wanted or registered) if host not in connected]
    if absent:
        return (
            f"Gfarm: {', '.join(absent)} is registered but not connected to the metadata server: its gfsd is not running, "
            'or its key differs (then its log says "authentication error"): copy the key of _gfarmfs from the metadata '
            "server and restart gfsd"
        )
    return "Gfarm: no filesystem node has room or a replica: see gfdf and gfwhere"


def nodes(env: Mapping[str, str] | None = None) -> list[str]:
    """The filesystem nodes that are registered. Raises GfarmError."""
    # Architecture, CPUs, host, port, flags.
    lines = [line.split() for line in _lines(("gfhost", "-M"), env)]
    return sorted({words[2] for words in lines if len(words) >= 4})


def connected_nodes(env: Mapping[str, str] | None = None, within: Sequence[str] = ()) -> list[str]:
    """The filesystem nodes whose gfsd is connected to the metadata server. Raises GfarmError.

    `within` are the words before a command that run it where the metadata server can be reached.
    """
    try:
        return sorted({line.strip() for line in _lines((*within, "gfsched"), env)})
    except GfarmError as error:
        if NO_NODE in str(error):
            return []
        raise


def _lines(command: Sequence[str], env: Mapping[str, str] | None) -> list[str]:
    program = shutil.which(command[0])
    if program is None:
        raise GfarmMissing(f"{command[0]} is not installed: apt-get install gfarm-client")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GfarmError(
            f"the metadata server of {_config(env)} did not answer {command[0]} in time"
        ) from None
    reason = _reason(command[0], done.stderr)
    if done.returncode != 0 and NO_NODE in reason:
        return []
    if done.returncode != 0:
        raise GfarmError(explained(reason, env))
    return [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]


def _config(env: Mapping[str, str] | None) -> str:
    return {**os.environ, **(env or {})}.get("GFARM_CONFIG_FILE", "/etc/gfarm2.conf")
