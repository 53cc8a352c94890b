"""A site with Slurm, and a far site behind an emulated path with `waystage serve` and rsync. Used by benchmarks of staging.

All files are in one folder in memory: `near`, which all nodes see; `far`, which the far site serves; the home of a
user who submits. Slurm gives root no burst buffer, so a user is made for the run and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError, installed
from waystage.interconnect.graphml import read_topology
from waystage.wan.trust import KnownHosts
from waystage.worlds.lab.commands import environment, program, run
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.mpi import build
from waystage.worlds.lab.slurm import LabSlurm
from waystage.worlds.lab.slurm_far import FAR_ADDRESS, FarSite
from waystage.worlds.lab.wan.profile import Direction, Profile

MEMORY = Path("/dev/shm")
PORT = 7900
START_S = 30.0
WAYSTAGE = [sys.executable, "-P", "-m", "waystage"]

# 200 Mbit/s, 50 ms, one packet in a thousand lost: a research network's path on a bad day; both directions alike.
PATH = Profile(
    name="far-site",
    both=Direction(rate=200e6, delay=25_000_000, loss=0.001),
)


class SlurmSite:
    """A running site. `far` and `near` are folders; the far site's paths are `there(...)`."""

    def __init__(self, lab: Lab, folder: Path, user: str) -> None:
        self.lab, self.slurm = lab, LabSlurm(lab)
        self.folder, self.user = folder, user
        self.near, self.far = folder / "near", folder / "far"
        account = pwd.getpwnam(user)
        self.uid, self.gid = account.pw_uid, account.pw_gid

    def there(self, path: str) -> str:
        """HOST:PATH of something at the far site, for Waystage."""
        return f"{FAR_ADDRESS}:{self.far / path}"

    def rsync_there(self, path: str) -> str:
        return f"rsync://{FAR_ADDRESS}/far/{path}"

    def sbatch(self, script: Path, *options: str) -> int:
        """Submit as the user; the job's id. Raises BenchError with sbatch's words."""
        become = [program("setpriv"), f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--"]
        words = [*self.slurm.enter(), *become, program("sbatch"), "--parsable", *options, str(script)]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.near,
            env=environment({**self.slurm.environment, "HOME": str(self.folder / "home"), "USER": self.user}),
        )
        if done.returncode != 0:
            raise BenchError(f"sbatch: {done.stderr.strip()[-300:]}")
        return int(done.stdout.strip())

    def states(self, jobs: list[int]) -> dict[int, str]:
        """Slurm's state of each job."""
        text = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%A|%T", check=False)
        found = dict(line.split("|") for line in text.splitlines() if "|" in line)
        return {job: found.get(str(job), "") for job in jobs}

    def known(self) -> set[int] | None:
        """Jobs that Slurm knows; None where slurmctld does not answer."""
        try:
            text = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%A")
        except LabError:
            return None
        return {int(line) for line in text.split()}

    def held_s(self, job: int) -> float:
        """Seconds for which the job held its nodes, by Slurm's clock of whole seconds."""
        text = self.slurm.command("scontrol", "-o", "show", "job", str(job))
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        times = [time.mktime(time.strptime(fields[k], "%Y-%m-%dT%H:%M:%S")) for k in ("StartTime", "EndTime")]
        return times[1] - times[0]


@contextlib.contextmanager
def slurm_site(name: str, hooks: str | None, *, burst_buffer_lua: str = "") -> Iterator[SlurmSite]:
    """A site; `hooks` as of LabSlurm.start, or a burst_buffer.lua of a peer."""
    installed("rsync")
    user = f"ws-{name}"[:30]
    with (
        tempfile.TemporaryDirectory(prefix="waystage-slurm-", dir=MEMORY) as text,
        contextlib.ExitStack() as held,
    ):
        folder = Path(text)
        folder.chmod(0o755)
        run(["useradd", "--no-create-home", "--home-dir", str(folder / "home"), "--shell", "/bin/sh", user])
        held.callback(run, ["userdel", user], check=False)
        lab = held.enter_context(Lab(name, read_topology("paper"), host_bytes=64 << 20))
        site = SlurmSite(lab, folder, user)
        for each in ("near", "far", "home"):
            (folder / each).mkdir()
            os.chown(folder / each, site.uid, site.gid)
        start_controller(lab, "link-separation")
        beside = {"burst_buffer.lua": burst_buffer_lua} if burst_buffer_lua else {}
        extra = "BurstBufferType=burst_buffer/lua\n" if burst_buffer_lua else ""
        site.slurm.start(hooks, extra_conf=extra, beside=beside)  # type: ignore[arg-type]
        far = held.enter_context(FarSite(lab, PATH))
        _serve(site, far, held)
        _serve_rsync(site, far, held)
        held.callback(_end_jobs, site)
        yield site


def programs(site: SlurmSite) -> Path:
    """The shipped MPI program, where the user can execute it."""
    path = site.folder / "alltoall"
    if not path.exists():
        shutil.copyfile(build("alltoall"), path)
        path.chmod(0o755)
    return path


def make_tree(site: SlurmSite, name: str, size: int, files: int, seed: int) -> str:
    """A tree at the far site, of pseudo-random files; the digest of its contents."""
    folder = site.far / name
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    for index in range(files):
        path = folder / f"{index:04d}.bin"
        path.write_bytes(draw.randbytes(size // files))
        os.chown(path, site.uid, site.gid)
    os.chown(folder, site.uid, site.gid)
    return digest(folder)


def digest(folder: Path) -> str:
    """Of names and contents of the files in a folder; empty where it is absent."""
    if not folder.is_dir():
        return ""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(
            path.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return whole.hexdigest()


def _serve(site: SlurmSite, far: FarSite, held: contextlib.ExitStack) -> None:
    """`waystage serve` at the far end; the user has a key, and knows the server's."""
    folder = site.folder
    home = folder / "home/.config/waystage/wan"
    home.mkdir(parents=True)
    wan_make_key(folder / "server.key")
    client = wan_make_key(home / "key")
    KnownHosts(home / "known_hosts").add(FAR_ADDRESS, PORT, wan_read_key(folder / "server.key"))
    for path in (folder / "home").rglob("*"):
        os.chown(path, site.uid, site.gid)
    (folder / "serve.toml").write_text(
        f'listen = "{FAR_ADDRESS}:{PORT}"\nkey = "server.key"\nlog = "serve.log"\n'
        f'[[root]]\npath = "{site.far}"\nwrite = true\n'
        f'[users.{site.user}]\nkeys = ["{client}"]\naccount = "{site.user}"\n',
        encoding="utf-8",
    )
    ready = folder / "ready"
    config = ["--config", str(folder / "serve.toml"), "--ready-file", str(ready)]
    with (folder / "serve.out").open("wb") as log:
        server = far.start([*WAYSTAGE, "serve", *config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    held.callback(_ended, server)
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"waystage serve did not start: {(folder / 'serve.out').read_text()[-300:]}")
        time.sleep(0.05)


def _serve_rsync(site: SlurmSite, far: FarSite, held: contextlib.ExitStack) -> None:
    (site.folder / "rsyncd.conf").write_text(
        f"use chroot = no\nuid = {site.uid}\ngid = {site.gid}\nlog file = {site.folder}/rsyncd.log\n"
        f"[far]\npath = {site.far}\nread only = no\n"
    )
    words = [
        program("rsync"),
        "--daemon",
        "--no-detach",
        f"--config={site.folder}/rsyncd.conf",
        f"--address={FAR_ADDRESS}",
    ]
    daemon = far.start(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    held.callback(_ended, daemon)


def _ended(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_jobs(site: SlurmSite) -> None:
    """Before the lab goes: a job that runs holds files of the folder."""
    site.slurm.command("scancel", f"--user={site.user}", check=False)
