"""This user's key, and the keys of known servers.

Arrives: a folder, a host and port, a server's key.
Leaves: this user's key, created on first use; the key that a server presented before.
Must not know: connections.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from waystage.wan.errors import WanConfigError


def wan_dir() -> Path:
    """The default folder of keys and known hosts: ~/.config/waystage/wan."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "waystage" / "wan"


def own_key(path: Path | None) -> Path:
    """The file with this user's key: `path`, which must exist, or the default, created if missing."""
    from waystage._native import wan_make_key

    if path is not None:
        return path
    usual = wan_dir() / "key"
    if not usual.exists():
        usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        wan_make_key(usual)
    return usual


@contextmanager
def passing_key() -> Iterator[tuple[Path, str]]:
    """A key that exists only in memory, for the block: the path of its file, and its public line.

    Nothing of it is left behind, however this process ends.
    """
    from waystage._native import wan_make_key

    with tempfile.TemporaryDirectory(prefix="waystage-key-") as folder:
        line = wan_make_key(Path(folder) / "key")
        key = (Path(folder) / "key").read_bytes()
    descriptor = os.memfd_create("waystage-key", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, key)
        yield Path(f"/proc/self/fd/{descriptor}"), line
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class KnownHosts:
    """A file with a line `HOST:PORT KEY` for each trusted server."""

    path: Path

    def find(self, host: str, port: int) -> str | None:
        """The key that this server presented before, as a line; None where it is unknown."""
        from waystage._native import WanError, wan_fingerprint

        wanted = _name(host, port)
        for number, line in enumerate(self._lines(), start=1):
            words = line.split("#", 1)[0].split(None, 1)
            if len(words) == 2 and words[0] == wanted:
                try:
                    wan_fingerprint(words[1])
                except WanError as error:
                    raise WanConfigError(f"{self.path}, line {number}: {error}") from None
                return words[1].strip()
        return None

    def add(self, host: str, port: int, key: str) -> None:
        """Trust this key from now on."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(f"{_name(host, port)} {key}\n")

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise WanConfigError(f"{self.path} cannot be read: {error}") from None


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
