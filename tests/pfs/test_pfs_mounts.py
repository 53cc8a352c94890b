"""`waystage lab pfs` as a user types it: mounted, looked into, unmounted, and repaired after its process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import WAIT_S, Waystage, command, ran, wait_until
from pfs_support import FAST, MADE_UP, Mount
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs import mounts

pytestmark = pytest.mark.lab


@pytest.fixture
def shape(tmp_path: Path) -> str:
    file = tmp_path / "fast.yaml"
    file.write_text(FAST + MADE_UP)
    return str(file)


def test_it_is_mounted_looked_into_and_unmounted(waystage: Waystage, point: Path) -> None:
    made = waystage(
        "lab", "pfs", "mount", str(point), "--files", "30", "--size", "2.7 kB", "--dilation", "1.5", "--json"
    ).expect()
    assert (made.json["shape"], made.json["state"], made.json["dilation"]) == ("nurion", "serving", 1.5)
    assert (point / "d00000" / "f000000029").stat().st_size == 2700
    (point / "d00000" / "f000000000").read_bytes()
    listed = waystage("lab", "pfs", "status", "--json").json["mounts"]
    assert str(point) in [m["point"] for m in listed]
    shown = waystage("lab", "pfs", "status", str(point))
    assert shown.code in (0, 7), shown.err
    assert "does not measure Lustre" in shown.out and "in service" in shown.out
    state = waystage("lab", "pfs", "status", str(point), "--json", "--reset").json
    assert len(state["targets"]) == 24 and len(state["metadata"]) == 2
    assert sum(t["read_bytes"] for t in state["targets"]) >= 2700
    assert (
        sum(t["requests"] for t in waystage("lab", "pfs", "status", str(point), "--json").json["targets"])
        == 0
    )
    ended = waystage("lab", "pfs", "umount", str(point), "--json")
    assert ended.json == {"point": str(point), "was": "serving"}
    assert not mounts.is_mounted(point) and list(point.iterdir()) == []
    assert not Path(f"/proc/{made.json['pid']}/exe").exists(), "at most its zombie is there"


def test_a_process_that_is_stopped_and_continued_serves_on(
    waystage: Waystage, point: Path, shape: str
) -> None:
    pid = waystage("lab", "pfs", "mount", str(point), "--shape", shape, "--json").expect().json["pid"]
    for turn in range(100):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.02 + turn % 5 * 0.005)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.015)
        assert mounts.find(point).state == "serving", f"after {turn + 1} stops"
    assert (point / "d00000").is_dir()


def test_what_is_in_use_stays_unless_forced(waystage: Waystage, point: Path, shape: str) -> None:
    assert waystage("lab", "pfs", "mount", str(point), "--shape", shape).code == 0
    descriptor = os.open(point / "d00000" / "f000000000", os.O_RDONLY)
    refused = waystage("lab", "pfs", "umount", str(point))
    assert (refused.code, "is in use" in refused.err) == (6, True)
    assert waystage("lab", "pfs", "umount", str(point), "--force").code == 0
    assert not mounts.is_mounted(point)
    with pytest.raises(OSError):
        os.close(descriptor)


def test_a_mount_whose_process_was_killed_is_found_and_repaired(
    waystage: Waystage, point: Path, shape: str
) -> None:
    def kill() -> None:
        pid = waystage("lab", "pfs", "mount", str(point), "--shape", shape, "--json").json["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: mounts.find(point).state == "stale")

    kill()
    listed = waystage("lab", "pfs", "status", "--json").json["mounts"]
    assert [m["state"] for m in listed if m["point"] == str(point)] == ["stale"]
    shown = waystage("lab", "pfs", "status", str(point))
    assert (shown.code, "its process has died" in shown.err) == (1, True)
    assert waystage("lab", "pfs", "mount", str(point), "--shape", shape).code == 0, "mounting repairs it"
    assert (point / "d00000").is_dir()
    waystage("lab", "pfs", "umount", str(point))
    kill()
    assert waystage("lab", "pfs", "umount", str(point), "--json").json["was"] == "stale"
    assert list(point.iterdir()) == []


def test_umount_by_anyone_ends_the_process(waystage: Waystage, point: Path, shape: str) -> None:
    pid = waystage("lab", "pfs", "mount", str(point), "--shape", shape, "--json").json["pid"]
    subprocess.run(["umount", str(point)], check=True)
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())
    assert waystage("lab", "pfs", "umount", str(point)).code == 1
    assert str(point) not in [m.point for m in pfs.mounted()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_ends_with_its_command(point: Path, shape: str, number: signal.Signals) -> None:
    argv = command("lab", "pfs", "mount", point, "--shape", shape, "--foreground")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: mounts.is_mounted(point) and (point / "d00000").is_dir())
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err.splitlines()[-1]) == (130, "waystage: error: interrupted")
    assert not mounts.is_mounted(point)


def test_a_run_whose_emulation_was_late_is_declared_invalid(
    waystage: Waystage, point: Path, shape: str
) -> None:
    # A thousandth of the servers' times: no machine answers in a microsecond.
    assert waystage("lab", "pfs", "mount", str(point), "--shape", shape, "--dilation", "0.001").code == 0
    for folder in point.iterdir():
        for file in folder.iterdir():
            file.read_bytes()
    shown = waystage("lab", "pfs", "status", str(point), "--json").expect(7)
    assert "give a --dilation above 0.001" in shown.out


def test_what_cannot_be_mounted_on_is_refused(
    waystage: Waystage, point: Path, shape: str, tmp_path: Path
) -> None:
    def refused(place: Path, *options: str) -> tuple[int, str]:
        ran = waystage("lab", "pfs", "mount", str(place), "--shape", shape, *options)
        return ran.code, ran.err

    (tmp_path / "file").touch()
    (tmp_path / "full" / "something").mkdir(parents=True)
    for place, said in (
        (tmp_path / "nowhere", "is no directory to mount on"),
        (tmp_path / "nowhere" / "at-all", "cannot be mounted on: No such file"),
        (tmp_path / "file", "is no directory to mount on"),
        (tmp_path / "full", "is not empty"),
    ):
        code, err = refused(place)
        assert (code, said in err) == (1, True), err
    assert refused(Path("/proc"))[0] == 6
    for folder, said in (
        (tmp_path / "nowhere", "cannot be served"),
        (tmp_path / "file", "is no directory that could be served"),
        (point.parent, "must lie outside"),
        (point, "must lie outside"),
    ):
        code, err = refused(point, "--folder", str(folder))
        assert (code, said in err) == (1, True), err
    assert refused(point, "--folder", str(tmp_path), "--files", "3")[0] == 2
    assert refused(point, "--size", "much")[0] == 2
    assert waystage("lab", "pfs", "mount", str(point), "--shape", str(tmp_path / "no.yaml")).code == 3
    assert waystage("lab", "pfs", "mount", str(point), "--shape", shape).code == 0
    code, err = refused(point)
    assert (code, "mounted there already" in err) == (6, True)
    assert waystage("lab", "pfs", "status", str(tmp_path / "full")).code == 1


def test_without_fuse_it_says_how_to_get_it(point: Path, shape: str) -> None:
    script = (
        "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && "
        f"exec {sys.executable} -m waystage lab pfs mount {point} --shape {shape}"
    )
    done = ran(["unshare", "--mount", "sh", "-c", script]).expect(4)
    assert "/dev/fuse cannot be opened" in done.err and "modprobe fuse" in done.err


def test_without_root_it_says_so_first(point: Path, shape: str) -> None:
    program = (
        "import os, sys; from waystage.cli.main import main; os.geteuid = lambda: 65534; main(sys.argv[1:])"
    )
    done = ran([sys.executable, "-c", program, "lab", "pfs", "mount", str(point), "--shape", shape])
    assert (done.code, "needs root" in done.err) == (5, True), done.err


def test_two_mounts_live_side_by_side(
    mount: Mount, point: Path, tmp_path: Path, waystage: Waystage, shape: str
) -> None:
    mount()
    other = tmp_path / "other mount"
    other.mkdir()
    try:
        assert waystage("lab", "pfs", "mount", str(other), "--shape", shape).code == 0
        assert {str(point), str(other)} <= {m.point for m in pfs.mounted()}
        assert waystage("lab", "pfs", "umount", str(other)).code == 0
        assert mounts.is_mounted(point) and not mounts.is_mounted(other)
    finally:
        if mounts.is_mounted(other):
            subprocess.run(["umount", "--lazy", str(other)], check=True)
