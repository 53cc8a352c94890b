"""Whether a server could do what its configuration says, on this machine and as this user: the checks of `waystage
serve --check`.

Arrives: a valid configuration.
Leaves: one sentence for each unusable directory, file and address; nothing is created or changed.
Must not know: the command line.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from waystage.wan.accounts import Account, account_problems, may_access
from waystage.wan.config import RootConfig, ServeConfig


def problems(config: ServeConfig) -> list[str]:
    """Problems that prevent serving, in the order of the configuration's documentation."""
    found = [*_listening(config.listen)]
    if config.log is not None:
        found += _log(config.log)
    found += (problem for user in config.users for problem in _shared_key_file(user.name, user.keys_file))
    found += _double_keys(config)
    found += account_problems(config)
    found += (problem for root in config.roots for problem in _root(root, config))
    return found


def _listening(listen: str) -> Iterator[str]:
    """The address, at any port: the server itself may run already."""
    host = listen.rpartition(":")[0].removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError as error:
        yield f"listen: {host} is no address to listen at on this host: {error.strerror}"


def _log(path: Path) -> Iterator[str]:
    parent = path.parent
    try:
        about = path.stat()
    except FileNotFoundError:
        if not parent.is_dir():
            yield f"log: {parent} is no directory: make it"
        elif not _may(parent, os.W_OK | os.X_OK):
            yield f"log: {path} cannot be made: {_who()} may not write in {parent}"
        return
    except OSError as error:
        yield f"log: {path} cannot be used: {error.strerror}"
        return
    if stat.S_ISDIR(about.st_mode) or stat.S_ISSOCK(about.st_mode):
        yield f"log: {path} is no file to write to"
    elif not _may(path, os.W_OK):
        yield f"log: {_who()} may not write to {path}"


def _shared_key_file(user: str, path: Path | None) -> Iterator[str]:
    """A user who may write it may add a key."""
    if path is None:
        return
    for each in (path, path.parent):
        about = each.stat()
        sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
        if about.st_mode & 0o022 and not sticky:
            yield f"users.{user}.keys_file: others than its owner may write to {each}: chmod go-w {each}"
        if about.st_uid not in (0, os.geteuid()):
            yield f"users.{user}.keys_file: {each} belongs to user {about.st_uid}, neither to root nor to {_who()}"


def _double_keys(config: ServeConfig) -> Iterator[str]:
    """The server identifies a user by its key."""
    owners: dict[str, str] = {}
    for user in config.users:
        for line in user.keys:
            key = " ".join(line.split()[:2])
            if owners.setdefault(key, user.name) != user.name:
                yield f"users.{user.name}.keys: a key of this user is one of {owners[key]}'s too: each key tells one user"


def _root(root: RootConfig, config: ServeConfig) -> Iterator[str]:
    name = f"root {root.path}"
    try:
        descriptor = os.open(root.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        words = {errno.ENOENT: "is not there: make it", errno.ENOTDIR: "is no directory"}
        yield f"{name} {words.get(error.errno or 0, f'cannot be opened: {error.strerror}')}"
        return
    os.close(descriptor)
    for who, may in _served(root, config):
        if not may(root.path, os.R_OK | os.X_OK):
            yield f"{name} cannot be read by {who}"
        elif root.write and not may(root.path, os.W_OK):
            yield f"{name}: write is true, and {who} may not write in it"
    if root.write and os.statvfs(root.path).f_flag & os.ST_RDONLY:
        yield f"{name}: write is true, and its file system is mounted read-only"
    if root.privileged and os.geteuid() != 0:
        yield f"{name}: privileged is true, and {_who()} may not give files to other users: run the server as root"


def _served(root: RootConfig, config: ServeConfig) -> Iterator[tuple[str, Callable[[Path, int], bool]]]:
    """As whom the server opens this root, and how to ask what they may: a server that runs as root acts as its
    users' accounts."""
    if os.geteuid() != 0:
        yield _who(), _may
        return
    seen: set[Account] = set()
    for user in config.users:
        account = user.account
        # A user without an account is a separate problem.
        if account is None or account in seen or (root.users and user.name not in root.users):
            continue
        seen.add(account)
        if account.uid == 0:
            yield _who(), _may
        else:
            yield f"account {account.name} of users.{user.name}", functools.partial(may_access, account)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _who() -> str:
    return f"user {os.geteuid()}"
