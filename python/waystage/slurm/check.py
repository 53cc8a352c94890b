"""What an installation of the hooks lacks, one sentence each.

Arrives: the path of slurm.conf, settings, Slurm's commands.
Leaves: findings, each with a way to repair it.
Must not know: how the hooks work.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from waystage.backplane.statefile import changeable
from waystage.slurm import commands
from waystage.slurm.errors import SlurmError
from waystage.slurm.hook_client import SITE_SOCKET
from waystage.slurm.install import plan_install, slurm_user
from waystage.slurm.settings import SlurmSettings

KNOWN_BUFFERS = range(37, 44)
"""Slurm's protocol versions whose file of buffers buffers.lua can extend: Slurm 21.08 to 25.05."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`ok`, or what is missing; `text` is the sentence."""

    what: str
    ok: bool
    text: str


def check(slurm_conf: Path, settings: SlurmSettings) -> list[Finding]:
    """All findings, in the order in which they are best repaired. Raises SlurmConfigError where slurm.conf is absent."""
    return list(_findings(slurm_conf, settings))


def writable_by_others(path: Path, user: str) -> str | None:
    """Why others than root and `user` could change what is at this path; None where they cannot."""
    try:
        trusted = {0, pwd.getpwnam(user).pw_uid}
    except KeyError:
        trusted = {0}
    return changeable(path, trusted)


def _findings(slurm_conf: Path, settings: SlurmSettings) -> Iterator[Finding]:
    changes = plan_install(slurm_conf, settings)
    if changes:
        names = ", ".join(change.path.name for change in changes)
        yield _no("files", f"{names}: not as this version installs them: run 'waystage slurm install'")
    else:
        yield _yes("files", f"the hooks in {slurm_conf.parent} are those of this version")
    user = slurm_user(slurm_conf.read_text(encoding="utf-8", errors="replace"))
    yield from _rights(slurm_conf, settings, user)
    yield from _slurm(settings)
    yield _stager(settings, user)


def _stager(settings: SlurmSettings, user: str) -> Finding:
    """Whether SlurmUser can run the hooks' client, and may submit for others, by running it as that user."""
    socket = Path(settings.stager or os.environ.get("WAYSTAGE_STAGER") or SITE_SOCKET)
    if not socket.is_socket():
        return _no("stager", f"{socket}: there is no socket: start the staging service, 'waystage stager'")
    rights: dict[str, Any] = {}
    try:
        account = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        return _no("user", f"SlurmUser={user} is no user of this host")
    if os.geteuid() == 0 and account.pw_uid != 0:
        rights = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    try:
        done = subprocess.run(
            [*settings.client, "who"],
            env={"PATH": "/usr/bin:/bin", "WAYSTAGE_STAGER": str(socket)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=commands.LIMIT_S,
            check=False,
            cwd="/",
            **rights,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _no(
            "client", f"{user} cannot run {settings.client[0]}: {error}: install Waystage where it can"
        )
    if done.returncode != 0:
        why = commands.last_line(done.stderr or done.stdout, done.returncode)
        return _no("client", f"as {user}, the hooks' client fails: {why}")
    as_slurm_user = account.pw_uid == os.geteuid() or bool(rights)
    if as_slurm_user and not json.loads(done.stdout)["for_others"]:
        return _no(
            "user",
            f"SlurmUser is {user}: the staging service must name it, 'waystage stager --submitter {user}'",
        )
    return _yes("stager", f"{user} may submit at {socket} for the users of jobs")


def watched(state_dir: Path) -> bool:
    """Whether a process holds the lock of `waystage slurm watch`."""
    try:
        descriptor = os.open(state_dir / "watch.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _rights(slurm_conf: Path, settings: SlurmSettings, user: str) -> Iterator[Finding]:
    names = ("burst_buffer.lua", "job_submit.lua", "waystage-prolog", "waystage-epilog")
    paths = [slurm_conf.parent / name for name in names]
    loose = [
        why
        for path in (*paths, Path(settings.command[0]), Path(settings.client[0]), Path(settings.client[-1]))
        if path.exists() and (why := writable_by_others(path, user))
    ]
    if loose:
        yield _no("rights", loose[0])
    else:
        yield _yes("rights", "only root and SlurmUser can change what slurmctld runs")
    state_dir = Path(settings.state_dir)
    if not state_dir.is_dir():
        yield _no("state", f"{state_dir} is missing: 'waystage slurm install' makes it")
    elif state_dir.stat().st_mode & 0o077:
        yield _no("state", f"{state_dir} is open to others: chmod 700 {state_dir}")
    else:
        yield _yes("state", f"{state_dir} is SlurmUser's alone")
    if watched(state_dir):
        yield _yes("watch", "'waystage slurm watch' runs")
    else:
        yield _no(
            "watch",
            "'waystage slurm watch' does not run, so no controller hears of jobs: start waystage-slurm.service",
        )


def _slurm(settings: SlurmSettings) -> Iterator[Finding]:
    try:
        text = commands.run(["scontrol", "show", "config"])
    except SlurmError as error:
        yield _no("slurmctld", f"slurmctld does not answer: {error}")
        return
    wanted = []
    if settings.hooks == "burst-buffer":
        wanted.append(("BurstBufferType", "burst_buffer/lua", "burst_buffer_lua.so"))
    if settings.submission_checked:
        wanted.append(("JobSubmitPlugins", "lua", "job_submit_lua.so"))
    for key, value, file in wanted:
        plugin = Path(commands.setting("PluginDir", text)) / file
        if not plugin.exists():
            yield _no(
                "plug-in",
                f"{plugin} is missing: install Debian's slurm-wlm-basic-plugins, or build Slurm with Lua",
            )
        elif key == "BurstBufferType":
            yield from _buffers(Path(commands.setting("StateSaveLocation", text)))
        if value not in commands.setting(key, text).split(","):
            yield _no(
                "slurmctld",
                f"slurmctld runs without {key}={value}: restart it, a reconfigure does not load plug-ins",
            )
        else:
            yield _yes("slurmctld", f"slurmctld runs with {key}={value}")
    for name in ("PrologSlurmctld", "EpilogSlurmctld"):
        if not commands.setting(name, text):
            yield _no(
                name, f"slurmctld runs without {name}, so no controller hears of jobs: 'scontrol reconfigure'"
            )


def _buffers(state: Path) -> Iterator[Finding]:
    """Whether buffers.lua knows the version of slurmctld's file of buffers."""
    try:
        with (state / "burst_buffer_lua_state").open("rb") as file:
            version = file.read(2)
    except OSError:
        return  # slurmctld has not written it, or this user may not read it
    if len(version) == 2 and version[0] not in KNOWN_BUFFERS:
        yield _no(
            "buffers",
            f"slurmctld's file of buffers has version {version[0]}.{version[1]}, which this Waystage does not know: update "
            "Waystage; until then, 'squeue' shows a job that ends as slurmctld is killed as STAGE_OUT for MinJobAge, and "
            "its data is staged out by 'waystage slurm watch'",
        )


def _yes(what: str, text: str) -> Finding:
    return Finding(what=what, ok=True, text=text)


def _no(what: str, text: str) -> Finding:
    return Finding(what=what, ok=False, text=text)
