"""A server that runs as root acts for each user as an account of this host; and no user takes all of its connections."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, command, ran
from proxy_support import ALL, Proxies
from remote_copy_support import ACCOUNT
from waystage._native import wan_make_key, wan_read_key
from waystage.wan.accounts import parse_account

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")
UID, GID, OTHER_GID = 65534, 65533, 65532
ADA = f'account = "{UID}:{GID},{OTHER_GID}"\n'


@pytest.fixture
def open_site() -> Iterator[Proxies]:
    """A site that other accounts reach; `data` is theirs."""
    folder = Path(tempfile.mkdtemp(prefix="waystage-accounts-"))
    folder.chmod(0o755)
    site = Proxies(folder)
    if os.geteuid() == 0:
        os.chown(site.data, UID, GID)
    yield site
    site.close()
    shutil.rmtree(folder)


@needs_root
def test_what_a_user_writes_is_its_accounts_and_bound_by_its_rights(
    open_site: Proxies, tmp_path: Path
) -> None:
    site = open_site
    site.serve(user=ADA)
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/small").write_bytes(b"small")
    (tree / "large").write_bytes(os.urandom(5 << 20))
    (tree / "link").symlink_to("large")
    os.link(tree / "large", tree / "hard")
    site.copy(tree, f"127.0.0.1:{site.data}/new", "--no-owners").expect()
    for path in (site.data / "new", *(site.data / "new").rglob("*")):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (UID, GID), path
    assert not list(site.data.rglob(".waystage*"))

    # Rights of files hold, also in a root that is `privileged`.
    (site.data / "secret").write_bytes(b"root's")
    (site.data / "secret").chmod(0o600)
    (site.data / "shared").write_bytes(b"the group's")
    os.chown(site.data / "shared", 0, OTHER_GID)
    (site.data / "shared").chmod(0o640)
    (site.data / "roots").mkdir(mode=0o755)
    read = site.copy(f"127.0.0.1:{site.data}/secret", tmp_path / "got")
    assert read.code != 0 and not (tmp_path / "got").exists()
    assert site.copy(f"127.0.0.1:{site.data}/shared", tmp_path / "shared", "--no-owners").code == 0
    written = site.copy(tree, f"127.0.0.1:{site.data}/roots")
    assert written.code != 0 and list((site.data / "roots").iterdir()) == []
    os.chown(tree / "sub/small", 0, 0)
    (tree / "sub/small").chmod(0o4755)
    given = site.copy(tree, f"127.0.0.1:{site.data}/given")
    assert given.code == 8, "root's files cannot be made"
    status = (site.data / "given/sub/small").stat()
    assert status.st_uid == UID and not status.st_mode & 0o6000


@needs_root
def test_a_proxys_connections_are_the_accounts(open_site: Proxies) -> None:
    site = open_site
    site.serve(user=ADA + ALL)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        running = site.proxy("--forward", f"0:127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", running.port("forward"))):
            connection, (_, far) = listener.accept()
            with connection:
                owners = [
                    int(words[7])
                    for words in map(
                        str.split, Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
                    )
                    if int(words[1].rpartition(":")[2], 16) == far
                ]
                assert owners == [UID]
        running.end()


ATTACKS = """
import ctypes, os, resource, signal, sys

server, uid, gid = map(int, sys.argv[1:])
threads = [int(thread) for thread in os.listdir(f"/proc/{server}/task")]
os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *words):
    if getattr(libc, name)(*words) < 0:
        raise OSError(ctypes.get_errno(), name)

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def peek(thread):
    here = ctypes.create_string_buffer(8)
    ours, theirs = Vector(ctypes.addressof(here), 8), Vector(0x400000, 8)
    call("process_vm_readv", thread, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)

attacks = {}
for thread in threads:
    place = f"/proc/{server}/task/{thread}"
    attacks |= {
        ("ptrace", thread): lambda thread=thread: call("ptrace", 16, thread, None, None),
        ("seize", thread): lambda thread=thread: call("ptrace", 0x4206, thread, None, None),
        ("peek", thread): lambda thread=thread: peek(thread),
        ("mem", thread): lambda place=place: os.open(f"{place}/mem", os.O_RDWR),
        ("fd", thread): lambda place=place: os.listdir(f"{place}/fd"),
        ("environ", thread): lambda place=place: open(f"{place}/environ").read(),
        ("oom", thread): lambda place=place: open(f"{place}/oom_score_adj", "w").write("999"),
        ("prlimit", thread): lambda thread=thread: resource.prlimit(thread, resource.RLIMIT_NOFILE, (0, 0)),
    }
for number in (0, signal.SIGCONT, signal.SIGUSR1, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    attacks |= {
        (f"tgkill {number}", thread): lambda thread=thread, number=number: call("tgkill", server, thread, number)
        for thread in threads
    }
    attacks |= {
        (f"kill {number}", thread): lambda thread=thread, number=number: os.kill(thread, number)
        for thread in (server, *threads)
    }
for name, attack in attacks.items():
    try:
        attack()
    except PermissionError:
        continue
    except OSError as error:
        print(*name, error)
    else:
        print(*name, "worked")
"""


@needs_root
def test_no_process_of_a_users_account_reaches_into_the_server(open_site: Proxies) -> None:
    site = open_site
    site.serve(user=f'account = "{UID}:{UID}"\n{ALL}')
    assert site.process is not None
    server = site.process.pid
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = site.proxy("--forward", f"0:127.0.0.1:{listener.getsockname()[1]}")
        with socket.create_connection(("127.0.0.1", running.port("forward"))) as near:
            far, _ = listener.accept()
            acting = [
                line.split()[2]
                for task in Path(f"/proc/{server}/task").iterdir()
                for line in (task / "status").read_text(encoding="ascii").splitlines()
                if line.startswith("Uid:")
            ]
            assert str(UID) in acting and "0" in acting
            words = [sys.executable, "-c", ATTACKS, str(server), str(UID), str(UID)]
            # In a new session, where even SIGCONT has to be allowed.
            done = ran(words, start_new_session=True)
            assert (done.code, done.out, done.err) == (0, "", "")
            # The session goes on.
            with far:
                near.sendall(b"still here")
                far.settimeout(WAIT_S)
                assert far.recv(10) == b"still here"
        running.end()


@needs_root
@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("rate = '1M' # no account = '...'", ("users.ada.account: is missing", 'account = "root"')),
        ('account = "no-such-account"', ("users.ada.account: 'no-such-account' is no account",)),
        ('account = "0:0"', ("has all of root's rights",)),
        ('account = "1000"', ("UID:GID",)),
        ('account = "1000:x y"', ("UID:GID",)),
        ('account = "4294967295:0"', ("UID:GID",)),
    ],
)
def test_a_server_that_runs_as_root_wants_to_know_as_whom_it_acts(
    open_site: Proxies, user: str, words: tuple[str, ...]
) -> None:
    done = ran(command("serve", "--config", open_site.config(user=user)))
    assert done.code == 3 and all(word in done.err for word in words), done.err


@needs_root
def test_a_check_judges_roots_by_the_rights_of_accounts(open_site: Proxies) -> None:
    site = open_site

    def check(user: str = ADA) -> tuple[int, str]:
        words = command("serve", "--config", site.config(user=user), "--check", "--json")
        done = ran(words)
        return done.code, done.out + done.err

    assert check()[0] == 0, check()
    assert check('account = "root"')[0] == 0
    code, said = check("rate = '1M' # no account")
    assert code == 3 and "users.ada.account: is missing" in said
    account = f"account {UID}:{GID},{OTHER_GID} of users.ada"
    os.chown(site.data, 0, 0)
    code, said = check()
    assert code == 3 and f"{site.data}: write is true, and {account} may not write in it" in said
    assert check('account = "root"')[0] == 0
    # A group of the account's may.
    os.chown(site.data, 0, OTHER_GID)
    site.data.chmod(0o775)
    assert check()[0] == 0
    site.given.chmod(0o700)
    code, said = check()
    assert code == 3 and f"{site.given} cannot be read by {account}" in said
    site.given.chmod(0o755)
    # The way there is closed.
    site.folder.chmod(0o700)
    code, said = check()
    assert code == 3 and f"{site.data} cannot be read by {account}" in said


def test_accounts_are_named_or_numbered() -> None:
    own = parse_account(getpass.getuser())
    assert own.uid == os.getuid() and own.gid in own.groups
    numbered = parse_account("1000:100,7,100")
    assert (numbered.uid, numbered.gid, numbered.groups) == (1000, 100, (7, 100))


def test_one_users_idle_proxies_do_not_shut_others_out(open_site: Proxies, tmp_path: Path) -> None:
    site = open_site
    wan_make_key(site.folder / "bob.key")
    bob = f'\n[users.bob]\nkeys = ["{wan_read_key(site.folder / "bob.key")}"]\n{ACCOUNT}'
    site.serve("connections = 4", ACCOUNT + ALL + bob)
    idle = [site.proxy("--forward", "0:127.0.0.1:9") for _ in range(2)]
    (tmp_path / "file").write_bytes(b"contents")
    # Of four places one user of two has half.
    turned_away = site.copy(tmp_path / "file", f"127.0.0.1:{site.data}/ada")
    assert turned_away.code == 6 and "this user's cap of 2" in turned_away.json["error"], turned_away
    words = site.copying(tmp_path / "file", f"bob@127.0.0.1:{site.data}/bob")
    words[words.index(str(site.folder / "client.key"))] = str(site.folder / "bob.key")
    done = subprocess.run(words, capture_output=True, check=False, timeout=WAIT_S, env=site.environment())
    assert done.returncode == 0, done.stderr
    assert (site.data / "bob").read_bytes() == b"contents"
    for proxy in idle:
        proxy.end()
