"""Emulated paths without root: what another user put where the records are is not believed, and ends no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import folder_for_all
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.processes import ProcessId, RecordedProcess, boot_id
from waystage.worlds.lab.wan import resources

VICTIM, ATTACKER = 65534, 65533
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="processes of other users need root")


@pytest.fixture
def shared() -> Iterator[Path]:
    """As /tmp."""
    with folder_for_all("tmp", 0o1777) as made:
        yield made


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with paths, of the user who is attacked."""
    code = f"import os, sys\nif os.geteuid() == 0: os.setgroups([]); os.setresuid({VICTIM}, {VICTIM}, {VICTIM})\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield process
        process.stdin.close()


def _record(folder: Path, victim: int, *, boot: str | None = None) -> None:
    """What brings `lab wan down` to end a process."""
    folder.mkdir(parents=True)
    process = ProcessId.of(victim)
    assert process is not None
    told = RecordedProcess(process=process, boot_id=boot_id() if boot is None else boot)
    old = {"pid": process.pid, "start": process.start}
    as_told = {"process": old, "boot_id": told.boot_id, **old}
    (folder / "process.json").write_text(json.dumps(as_told))
    (folder / "record.json").write_text(json.dumps({"name": folder.name, "kind": "relay", "up": True}))


def _as_victim(shared: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`waystage lab wan ...` as the user who is attacked; everything is loaded while that may be read."""
    code = (
        "import os, sys, tempfile\nimport waystage.cli.main as main\nimport waystage.cli.lab_wan\n"
        "import waystage.worlds.lab.wan.paths, waystage.worlds.lab.wan.relays\n"
        f"tempfile.tempdir = {str(shared)!r}\nos.environ.pop('XDG_RUNTIME_DIR', None)\nos.chdir('/')\n"
        f"os.setgroups([]); os.setresgid({VICTIM}, {VICTIM}, {VICTIM}); os.setresuid({VICTIM}, {VICTIM}, {VICTIM})\n"
        "sys.argv[0] = 'waystage'\nsys.exit(main.main())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )


@needs_root
@pytest.mark.parametrize(
    "words",
    [
        ("lab", "wan", "down", "relay"),
        ("lab", "wan", "status", "relay"),
        ("lab", "wan", "relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"),
    ],
    ids=["down", "status", "relay"],
)
def test_a_folder_that_another_user_made_is_refused_and_ends_no_process(
    shared: Path, bystander: subprocess.Popen[bytes], words: tuple[str, ...]
) -> None:
    planted = shared / f"waystage-wan-{VICTIM}"
    _record(planted / "relay", bystander.pid)
    for path in (planted, *planted.rglob("*")):
        os.chown(path, ATTACKER, ATTACKER)
        path.chmod(0o777 if path.is_dir() else 0o666)
    ran = _as_victim(shared, *words)
    assert ran.returncode != 0 and "belongs to another user: set XDG_RUNTIME_DIR" in ran.stderr, ran
    assert bystander.poll() is None
    assert (planted / "relay" / "process.json").exists()


@needs_root
def test_a_link_to_a_folder_is_refused(shared: Path, bystander: subprocess.Popen[bytes]) -> None:
    mine = shared / "mine"
    _record(mine / "relay", bystander.pid)
    for path in (mine, *mine.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    (shared / f"waystage-wan-{VICTIM}").symlink_to(mine)
    os.chown(shared / f"waystage-wan-{VICTIM}", ATTACKER, ATTACKER, follow_symlinks=False)
    ran = _as_victim(shared, "lab", "wan", "down", "relay")
    assert ran.returncode != 0 and "is no folder" in ran.stderr, ran
    assert bystander.poll() is None


@needs_root
@pytest.mark.parametrize("what", ["file of another user", "link", "writable by all"])
def test_a_record_that_another_user_could_write_is_not_believed(
    shared: Path, bystander: subprocess.Popen[bytes], what: str
) -> None:
    own = shared / f"waystage-wan-{VICTIM}"
    _record(own / "relay", bystander.pid)
    for path in (own, *own.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    own.chmod(0o700)
    record = own / "relay" / "process.json"
    if what == "file of another user":
        os.chown(record, ATTACKER, ATTACKER)
    elif what == "link":
        elsewhere = shared / "elsewhere.json"
        record.rename(elsewhere)
        record.symlink_to(elsewhere)
    else:
        record.chmod(0o666)
    ran = _as_victim(shared, "lab", "wan", "down", "relay")
    assert ran.returncode == 0, ran
    assert bystander.poll() is None


def test_the_process_of_another_user_or_boot_is_not_the_one_recorded() -> None:
    me = RecordedProcess.me()
    assert me.alive
    assert not RecordedProcess(process=me.process, boot_id="another").alive
    assert not RecordedProcess(process=me.process, boot_id="").alive
    later = ProcessId(me.process.pid, me.process.start + 1)
    assert not RecordedProcess(process=later, boot_id=me.boot_id).alive


@needs_root
def test_root_does_not_take_a_users_process_for_its_own(bystander: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(bystander.pid)
    assert process is not None
    assert not RecordedProcess(process=process, boot_id=boot_id()).alive


def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_root", lambda: tmp_path / "waystage-wan")
    assert resources.make_root() == tmp_path / "waystage-wan"
    (tmp_path / "waystage-wan").mkdir(exist_ok=True)
    for mode in (0o777, 0o1777, 0o720):
        (tmp_path / "waystage-wan").chmod(mode)
        with pytest.raises(LabError, match="can be written to by others"):
            resources.root()
    (tmp_path / "waystage-wan").chmod(0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(LabError, match="others could replace"):
        resources.root()


def test_records_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        resources.write_own(tmp_path / "record", b"x")
        assert resources.read_own(tmp_path / "record") == b"x"
        assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_process_is_asked_to_end_only_where_it_is_that_very_one() -> None:
    from waystage.worlds.lab.processes import ask_to_end

    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as child:
        process = ProcessId.of(child.pid)
        assert process is not None
        ask_to_end(ProcessId(process.pid, process.start + 1))
        assert child.poll() is None
        ask_to_end(process)
        assert child.wait(60) == -signal.SIGTERM
