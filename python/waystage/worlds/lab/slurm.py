"""Slurm in the lab: munged, slurmctld and a slurmd in every computing host's namespace.

Arrives: a lab that is up.
Leaves: a Slurm whose nodes are the lab's hosts, its daemons watched by the lab and ended with it.
Must not know: what jobs do, policies, experiments.

slurmctld and munged share a separate namespace. A bridge there is the management network: it reaches every host
beside the fabric, so that Slurm works while the fabric has no rules, and its messages load no measured link. munged
has a key, socket and folder of this lab: the machine's own munge and Slurm, if there are any, are not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.slurm import hook_client
from waystage.slurm.errors import SlurmError
from waystage.slurm.install import apply, plan_install, slurm_user
from waystage.slurm.settings import Hooks, SlurmSettings
from waystage.worlds.lab import glusterfs, pfs
from waystage.worlds.lab.commands import environment, program, require, run, run_together
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.resources import SLURM_CONTROLLER
from waystage.worlds.lab.slurm_conf import (
    MANAGEMENT,
    SlurmFolders,
    management_address,
    slurm_conf,
    topology_conf,
)

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

_WAYSTAGE = (sys.executable, "-m", "waystage")

READY_LIMIT_S = 60.0
_POLL_S = 0.1
_DEVICE = "mgmt0"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo")
_MEMORY_KEPT_MIB = 1024


class LabSlurm:
    """`start` brings it up; `of(lab)` finds one that is up. Ended by the lab's `down`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.folders = SlurmFolders(base=lab.resources.slurm)
        self.namespace = lab.resources.namespace(SLURM_CONTROLLER)

    @classmethod
    def of(cls, lab: Lab) -> LabSlurm | None:
        """None where the lab was brought up without Slurm."""
        found = cls(lab)
        return found if found.folders.conf.exists() else None

    @property
    def environment(self) -> dict[str, str]:
        """What commands such as sbatch need to find this Slurm, from any namespace of the lab."""
        return {"SLURM_CONF": str(self.folders.conf)}

    def start(
        self,
        hooks: Hooks | None = "burst-buffer",
        *,
        extra_conf: str = "",
        beside: Mapping[str, str] | None = None,
        user: str = "root",
    ) -> None:
        """Bring Slurm up, with these hooks of Waystage, and wait until every node is idle.

        `user` is SlurmUser, which slurmctld and its hooks run as: it must be able to read the installation of Waystage.
        `extra_conf` is appended to slurm.conf, and `beside` are more files in its folder, by name. Raises MissingProgram, LabError; what has been started by then ends
        with the lab.
        """
        require(*_PROGRAMS)
        self._make_folders(user)
        self._connect_hosts()
        self._write_conf(extra_conf, user)
        for name, text in (beside or {}).items():
            (self.folders.conf.parent / name).write_text(text, encoding="utf-8")
        if hooks is not None:
            self._install(hooks, user)
        self._start_munged()
        self.start_controller()
        for host in self.nodes:
            self.start_node(host)
        self._wait_ready()
        if hooks is not None:
            self.start_stager()
            self.start_watch()

    def start_global_fs(self) -> Path:
        """Mount a GlusterFS of four bricks with shards, which every host and user sees; its mount point.

        Servers and client are in slurmctld's namespace, and end with the lab. Raises MissingProgram, LabError.
        """
        made = glusterfs.start(self.folders.base / "gl", server=self.namespace, address=management_address(0))
        point = self.folders.global_fs
        point.mkdir()
        glusterfs.mount(made, point, self.namespace)
        point.chmod(0o1777)  # as /tmp: each user has their own directories there
        return point

    def start_emulated_fs(self, shape: pfs.Shape) -> Path:
        """Mount an emulated striped file system of this shape, which every host and user sees; its mount point.

        What is written is in memory, below the lab's folder. Raises MissingProgram, LabError.
        """
        folder, point = self.folders.global_data, self.folders.global_fs
        for each in (folder, point):
            each.mkdir()
        folder.chmod(0o1777)  # as /tmp: each user has their own directories there
        pfs.mount(point, shape, folder, shared=True)
        return point

    @property
    def nodes(self) -> list[str]:
        """Computing hosts, in the topology's order."""
        return [host.name for host in self._lab.topology.hosts if host.role != "storage"]

    def enter(self) -> list[str]:
        """The words before a command that run it beside slurmctld."""
        return self._lab.resources.enter_slurm()

    def command(self, *words: str, check: bool = True) -> str:
        """Output of one of Slurm's commands. Raises LabError with its first line of error."""
        return run([*self.enter(), program(words[0]), *words[1:]], env=self.environment, check=check)

    def start_controller(self) -> subprocess.Popen[Any]:
        """Start slurmctld; also again, after it was killed."""
        return self._watched(
            "slurmctld",
            [*self.enter(), *self._become(), program("slurmctld"), "-D", "-f", str(self.folders.conf)],
        )

    def start_node(self, host: str) -> subprocess.Popen[Any]:
        """Start the slurmd of a host; also again, after it was killed."""
        enter = self._lab.resources.enter_host(host)
        words = [program("slurmd"), "-D", "-f", str(self.folders.conf), "-N", host]
        return self._watched(f"slurmd on {host}", [*enter, *words])

    def start_watch(self) -> subprocess.Popen[Any]:
        """Start `waystage slurm watch`, which reports jobs that no hook could."""
        words = ["slurm", "watch", "--state-dir", str(self.folders.hooks), "--interval", "2"]
        words += ["--endpoint", self._lab.backplane_endpoint]
        return self._watched("slurm watch", [*self.enter(), *_WAYSTAGE, *words])

    def start_stager(self) -> subprocess.Popen[Any]:
        """Start the staging service; also again, after it was killed."""
        folders = self.folders
        words = ["stager", "--state-dir", str(folders.stager), "--socket", str(folders.stager_socket)]
        words += ["--endpoint", self._lab.backplane_endpoint]
        words += ["--submitter", user] if (user := self._user()) != "root" else []
        stager = self._watched("stager", [*self.enter(), *_WAYSTAGE, *words])
        self._wait_for(folders.stager_socket, stager, "stager")
        return stager

    def states(self) -> dict[str, str]:
        """node -> Slurm's state of it, such as `idle` or `allocated`. Raises LabError where slurmctld does not answer."""
        lines = self.command("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split(maxsplit=1) for line in lines if " " in line)

    # -- below -------------------------------------------------------------------------------

    def _user(self) -> str:
        return slurm_user(self.folders.conf.read_text(encoding="utf-8"))

    def _become(self) -> list[str]:
        """The words before a command that run it as SlurmUser."""
        user = self._user()
        return (
            []
            if user == "root"
            else [program("setpriv"), "--reuid", user, "--regid", user, "--clear-groups", "--"]
        )

    def _make_folders(self, user: str) -> None:
        folders = self.folders
        for folder in (folders.base, folders.conf.parent, folders.spool, folders.logs, folders.munge):
            folder.mkdir(mode=0o755, parents=True)
        folders.state.mkdir(mode=0o700)  # job scripts of all users
        for folder in (folders.state, folders.logs):
            shutil.chown(folder, user)
        for host in self.nodes:
            (folders.spool / host).mkdir(mode=0o755)

    def _connect_hosts(self) -> None:
        """The management network: a bridge in slurmctld's namespace, with a device to every host."""
        resources = self._lab.resources
        uts = resources.uts / SLURM_CONTROLLER
        uts.touch()
        run(["ip", "netns", "add", self.namespace])
        run(["unshare", f"--uts={uts}", "hostname", SLURM_CONTROLLER])
        prefix = MANAGEMENT.prefixlen
        here = [
            "link set lo up",
            "link add br0 type bridge",
            f"addr add {management_address(0)}/{prefix} dev br0",
            "link set br0 up",
        ]
        there: dict[str, tuple[list[str], str]] = {}
        for index, host in enumerate(self._lab.topology.hosts, 1):
            device, space = f"m{index}", resources.namespace(host.name)
            here.append(f"link add {device} type veth peer name {_DEVICE} netns {space}")
            here += [f"link set {device} master br0", f"link set {device} up"]
            batch = f"addr add {management_address(index)}/{prefix} dev {_DEVICE}\nlink set {_DEVICE} up\n"
            there[host.name] = (["ip", "-n", space, "-batch", "-"], batch)
        run(["ip", "-n", self.namespace, "-batch", "-"], text_in="\n".join(here) + "\n")
        run_together(there)

    def _write_conf(self, extra: str, user: str) -> None:
        page = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        topology, folders = self._lab.topology, self.folders
        text = slurm_conf(
            topology,
            folders,
            name=f"ws_{self._lab.name}",
            memory_mib=max(page - _MEMORY_KEPT_MIB, page // 2),
            user=user,
        )
        beside = folders.conf.parent
        (beside / "topology.conf").write_text(topology_conf(topology), encoding="utf-8")
        (beside / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
        folders.conf.write_text(text + extra, encoding="utf-8")

    def _start_munged(self) -> None:
        folder = self.folders.munge
        key = folder / "key"
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(128))
        words = [program("munged"), "--foreground", "--num-threads=2", f"--key-file={key}"]
        words += [f"--socket={self.folders.munge_socket}", f"--pid-file={folder}/pid"]
        words += [f"--seed-file={folder}/seed", f"--log-file={folder}/munged.log"]
        munged = self._watched("munged", [*self.enter(), *words])
        self._wait_for(self.folders.munge_socket, munged, "munged")

    def _install(self, hooks: Hooks, user: str) -> None:
        """What `waystage slurm install` does on a site."""
        folders = self.folders
        settings = SlurmSettings(
            command=_WAYSTAGE,
            client=self._client(user),
            hooks=hooks,
            check_scripts=True,
            state_dir=str(folders.hooks),
            stager=str(folders.stager_socket),
            endpoint=self._lab.backplane_endpoint,
        )
        try:
            apply(plan_install(folders.conf, settings), settings, user)
        except SlurmError as error:
            raise LabError(f"the hooks of lab '{self._lab.name}' cannot be installed: {error}") from None

    def _client(self, user: str) -> tuple[str, ...]:
        """The hooks' client by an interpreter that `user` can run, of this installation or the system's."""
        own = hook_client.program()
        if user == "root":
            return own
        system = shutil.which("python3", path="/usr/bin:/bin")
        for words in (own, (system or own[0], *own[1:])):
            try:
                done = subprocess.run(
                    [*words, "help"],
                    capture_output=True,
                    cwd="/",
                    check=False,
                    user=user,
                    group=user,
                    extra_groups=[],
                )
            except PermissionError:
                continue
            if b"who" in done.stdout:
                return words
        raise LabError(
            f"SlurmUser {user} cannot run {own[0]} or read {own[-1]}: install Waystage where it can"
        )

    def _wait_for(self, socket: Path, process: subprocess.Popen[Any], name: str) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while not socket.is_socket():
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"{name} of lab '{self._lab.name}' did not start: {self._last_words(name)}")
            time.sleep(_POLL_S)

    def _watched(self, name: str, words: list[str]) -> subprocess.Popen[Any]:
        log = self._log(name)
        with log.open("ab") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment({**self.environment, "WAYSTAGE_STAGER": str(self.folders.stager_socket)}),
                cwd="/",
            )
        try:
            self._lab.watch(name, process, log)
        except LabError:
            raise LabError(f"{name} ended at once: {self._last_words(name)}") from None
        return process

    def _log(self, name: str) -> Path:
        return self.folders.logs / f"{name.replace(' ', '-')}.out"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        states: dict[str, str] = {}
        while time.monotonic() < deadline:
            self._lab.check()
            try:
                states = self.states()
            except LabError:
                states = {}
            if set(states) == set(self.nodes) and all(state == "idle" for state in states.values()):
                return
            time.sleep(_POLL_S)
        waiting = [host for host in self.nodes if states.get(host) != "idle"]
        raise LabError(
            f"after {READY_LIMIT_S:.0f} s Slurm does not have {', '.join(waiting)}: see {self.folders.logs}"
        )

    def _last_words(self, name: str) -> str:
        try:
            lines = self._log(name).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][-300:] if lines else f"it said nothing (see {self.folders.logs})"


def available() -> bool:
    """Whether Debian's packages are installed."""
    return all(shutil.which(p, path=environment()["PATH"]) is not None for p in _PROGRAMS)
