"""The accounts of this host that a server acts as for its users.

Arrives: a name of an account, or its numbers.
Leaves: the numbers of the account and of all its groups; whether a server that runs as this process may act as it.
Must not know: connections, keys.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waystage.wan.errors import WanConfigError

if TYPE_CHECKING:
    from waystage.wan.config import ServeConfig

MOST_ID = (1 << 32) - 2
"""The kernel reserves the number above it for `none`."""

HOW = 'name an account of this host, such as "ada", or its numbers, UID:GID or UID:GID,GID,...'


@dataclass(frozen=True)
class Account:
    """An account of this host with its groups; `uid` 0 is root, which keeps all rights."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def parse_account(text: str) -> Account:
    """The account that `text` names. Raises ValueError."""
    if text.partition(":")[0].isdecimal():
        return _numbered(text)
    try:
        entry = pwd.getpwnam(text)
    except KeyError:
        raise ValueError(f"{text!r} is no account of this host: {HOW}") from None
    if entry.pw_uid == 0 and text != "root":
        raise ValueError(f'{text!r} has all of root\'s rights: write "root" where that is meant')
    return Account(text, entry.pw_uid, entry.pw_gid, tuple(sorted(os.getgrouplist(text, entry.pw_gid))))


def _numbered(text: str) -> Account:
    uid_text, colon, groups_text = text.partition(":")
    try:
        uid, groups = int(uid_text), [_group(word) for word in groups_text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is no account: {HOW}") from None
    if not colon or not all(0 <= number <= MOST_ID for number in (uid, *groups)):
        raise ValueError(f"{text!r} is no account: {HOW}")
    if uid == 0:
        raise ValueError(f'{text!r} has all of root\'s rights: write "root" where that is meant')
    return Account(text, uid, groups[0], tuple(sorted(set(groups))))


def _group(word: str) -> int:
    if word.isdecimal():
        return int(word)
    try:
        return grp.getgrnam(word).gr_gid
    except KeyError:
        raise ValueError(word) from None


def account_problems(settings: ServeConfig) -> Iterator[str]:
    """Accounts that this process cannot act as, and users who would have root's rights without a setting."""
    own = os.geteuid()
    for user in settings.users:
        where = f"users.{user.name}.account"
        if own == 0 and user.account is None:
            yield (
                f"{where}: is missing, and the server runs as root: what {user.name} writes would be root's and bound by no"
                f" file's rights or quota. Name the account of this host that {user.name} is to be, or run the server as a user"
                ' without rights; account = "root" gives all of root\'s rights away'
            )
        if own != 0 and user.account is not None and user.account.uid != own:
            yield (
                f"{where}: only a server that runs as root acts as {user.account.name}; this one runs as user {own}: run it as"
                " root, or leave the key out"
            )


def may_access(account: Account, path: Path, mode: int) -> bool:
    """Whether the account may do what `mode`, as of os.access, says; checked in a process that has the account's
    rights."""
    child = os.fork()
    if child == 0:
        allowed = False
        try:
            os.setgroups(account.groups)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
            allowed = os.access(path, mode)
        finally:
            os._exit(0 if allowed else 1)
    return os.waitpid(child, 0)[1] == 0


def accounts_taken(settings: ServeConfig) -> list[tuple[str, int, int, list[int]]]:
    """Name of a user, number, group and groups of the account that serves it, for users with one.

    Raises WanConfigError where this process cannot act as an account, or would give root's rights to a user unasked.
    """
    for problem in account_problems(settings):
        raise WanConfigError(problem)
    return [
        (user.name, user.account.uid, user.account.gid, list(user.account.groups))
        for user in settings.users
        if user.account is not None
    ]
