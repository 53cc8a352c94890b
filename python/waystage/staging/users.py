"""Users of this host, and what an engine needs to have their rights.

Arrives: names, numbers, credentials of a peer.
Leaves: accounts; users, groups and environments of processes.
Must not know: requests.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

import msgspec

from waystage.staging.errors import Invalid

ENGINE_PATH = "/usr/local/bin:/usr/bin:/bin"
UMASK = 0o022

PASSED_ON = ("WAYSTAGE_FLOWS", "WAYSTAGE_DEBUG", "TZ", "LANG", "LC_ALL")
"""Environment variables of the stager that an engine gets too."""


class Account(msgspec.Struct, frozen=True):
    """A user whose rights an engine has."""

    uid: int
    gid: int
    name: str
    home: str


def account_of(uid: int, gid: int) -> Account:
    """The account of `uid`; one that the system does not list has `gid`, no other group and no home."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, str(uid), "/")
    return Account(uid, found.pw_gid, found.pw_name, found.pw_dir)


def account_named(user: str) -> Account:
    """The account with this name or number. Raises Invalid."""
    try:
        found = pwd.getpwuid(int(user)) if user.isascii() and user.isdigit() else pwd.getpwnam(user)
    except (KeyError, OverflowError, ValueError):
        raise Invalid(
            f"user {user[:64]!r} is unknown on this host: give a name or number of its users"
        ) from None
    return Account(found.pw_uid, found.pw_gid, found.pw_name, found.pw_dir)


def rights(account: Account) -> dict[str, Any]:
    """What an engine of `account` has: user, groups, umask and environment."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {
        "PATH": ENGINE_PATH,
        "HOME": account.home if os.geteuid() == 0 else os.environ.get("HOME", account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": "/bin/sh",
    }
    groups = [account.gid]
    try:
        pwd.getpwuid(account.uid)
        groups = os.getgrouplist(account.name, account.gid)
    except KeyError:
        pass
    return {
        "uid": account.uid,
        "gid": account.gid,
        "groups": groups,
        "umask": UMASK,
        "environment": environment,
    }
