"""Unix sockets: who may connect, and who may answer. As root, another user's processes try it."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, Waystage, folder_for_all, ran
from waystage.backplane import SITE_ENDPOINT, Backplane, BackplaneConfig, BackplaneError
from waystage.events import JobStarted
from waystage.jobs.notify import DEFAULT_ENDPOINT

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="processes of another user need root")


def _unix(path: Path) -> str:
    return f"unixsock-stream/{path}"


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """As /run/waystage."""
    with folder_for_all("run", 0o755) as made:
        yield made


def _become_stranger(group: int = STRANGER) -> str:
    """The interpreter may be where only root can start it, so it changes its user itself."""
    ids = f"os.setresgid({group}, {group}, {group}); os.setresuid({STRANGER}, {STRANGER}, {STRANGER})"
    return f"import os, socket, sys\nos.setgroups([]); {ids}\n"


def _as_stranger(code: str, *, group: int = STRANGER) -> str:
    """What `code` prints, run by a process of another user."""
    done = ran([sys.executable, "-c", _become_stranger(group) + code])
    return done.out.strip() or done.err[-300:]


def _connect(path: Path) -> str:
    return (
        "s = socket.socket(socket.AF_UNIX)\n"
        f"try: s.connect({str(path)!r}); print('connected')\nexcept OSError as e: print(type(e).__name__)"
    )


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_socket_is_for_its_owner_alone_whatever_the_umask(folder: Path, mask: int) -> None:
    path = folder / "b.sock"
    with _umask(mask), Backplane.open(BackplaneConfig(name="r", listen=(_unix(path),))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        made = folder / "after"
        made.touch()
        assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~mask, "the umask is what it was"


@needs_root
def test_another_user_of_the_machine_cannot_connect(folder: Path) -> None:
    path = folder / "b.sock"
    with _umask(0), Backplane.open(BackplaneConfig(name="r", listen=(_unix(path),))):
        assert _as_stranger(_connect(path)) == "PermissionError"


@needs_root
def test_only_the_group_given_may_connect_too(folder: Path) -> None:
    path = folder / "b.sock"
    config = BackplaneConfig(name="r", listen=(_unix(path),), local_group=grp.getgrgid(12).gr_name)
    with Backplane.open(config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert _as_stranger(_connect(path), group=12) == "connected"
        assert _as_stranger(_connect(path)) == "PermissionError"
    with pytest.raises(BackplaneError, match="no group 'no-such-group'"):
        BackplaneConfig(listen=(_unix(path),), local_group="no-such-group").check()


def test_a_socket_where_others_could_put_theirs_is_refused(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    for mode in (0o777, 0o1777, 0o775):
        shared.chmod(mode)
        os.chown(shared, -1, STRANGER if os.geteuid() == 0 else os.getegid())
        for side in ("listen", "connect"):
            config = BackplaneConfig(name="r", **{side: (_unix(shared / "b.sock"),)})  # type: ignore[arg-type]
            if side == "connect":
                _listening(shared / "b.sock").close()
            with pytest.raises(BackplaneError, match=r"other users may write to .*shared.*chmod go-w"):
                Backplane.open(config)
            (shared / "b.sock").unlink(missing_ok=True)


@needs_root
def test_a_socket_that_another_user_planted_is_not_believed(folder: Path) -> None:
    """It would confirm events that no journal holds."""
    sticky = folder / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    theirs = sticky / "waystage"
    theirs.mkdir()
    os.chown(theirs, STRANGER, STRANGER)
    with contextlib.closing(_listening(theirs / "b.sock")):
        os.chown(theirs / "b.sock", STRANGER, STRANGER)
        with pytest.raises(BackplaneError, match="belongs to another user"):
            Backplane.open(BackplaneConfig(connect=(_unix(theirs / "b.sock"),)))
        with pytest.raises(BackplaneError, match="belongs to another user"):
            Backplane.open(BackplaneConfig(listen=(_unix(theirs / "b.sock"),)))


@needs_root
def test_a_process_that_answers_for_anothers_socket_is_not_believed(folder: Path) -> None:
    """The socket belongs to one user, and a process of another listens: SO_PEERCRED says so."""
    path = folder / "b.sock"
    listen = f"s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen()"
    code = f"{_become_stranger()}{listen}; print('up', flush=True); sys.stdin.read()"
    folder.chmod(0o777)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as liar:
        assert liar.stdin is not None and liar.stdout is not None
        assert liar.stdout.readline() == b"up\n"
        folder.chmod(0o755)
        os.chown(path, 1, 1)
        try:
            with pytest.raises(BackplaneError, match="user 65534 answers"):
                Backplane.open(BackplaneConfig(connect=(_unix(path),)))
        finally:
            liar.stdin.close()


@pytest.mark.parametrize("path", ["@waystage", "relative/b.sock", "/" + "x" * 120])
def test_names_that_are_no_files_are_refused(path: str) -> None:
    with pytest.raises(BackplaneError, match="unix socket"):
        BackplaneConfig(listen=(f"unixsock-stream/{path}",)).check()


def test_a_folder_that_is_missing_is_made_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / "b.sock"
    with (
        Backplane.open(BackplaneConfig(name="r", listen=(_unix(path),))) as router,
        Backplane.open(BackplaneConfig(connect=(_unix(path),))) as client,
    ):
        subscription = router.subscribe("JobStarted")
        client.publish(JobStarted(job_id="1", nodes=("c1",)))
        item = subscription.get(WAIT_S)
        assert item is not None and item.source.startswith("local."), "it says that its name proves nothing"
    with pytest.raises(BackplaneError, match=r"cannot make its folder /proc/none"):
        Backplane.open(BackplaneConfig(listen=("unixsock-stream//proc/none/b.sock",)))


def test_the_defaults_meet_at_a_unix_socket(waystage: Waystage, repository: Path) -> None:
    assert DEFAULT_ENDPOINT == SITE_ENDPOINT == "unixsock-stream//run/waystage/backplane.sock"
    assert SITE_ENDPOINT in (repository / "deploy/systemd/waystage-controller.service").read_text() + "".join(
        file.read_text() for file in (repository / "deploy/zenoh").iterdir()
    )
    ran = waystage("notify", "job-end", "1", "--endpoint", "tcp/127.0.0.1:7447")
    assert ran.code == 1 and "unixsock-stream//run/waystage/backplane.sock" in ran.err
    ran = waystage("controller", "--listen", "tcp/127.0.0.1:7447", "--state-dir", "state")
    assert ran.code == 1 and "--insecure" in ran.err


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made
