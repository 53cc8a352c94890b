"""The directories of a `waystage serve` as a file system of fsspec: `waystage://[USER@]HOST[:PORT]/PATH`.

Arrives: paths; requests of fsspec.
Leaves: entries, parts of files, changed directories, copies of trees.
Must not know: how messages are sent, how trees are copied.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from waystage._native import RemoteTree, WanError
from waystage.cli.calling import CopyFailed, copy
from waystage.cli.common import Output
from waystage.cli.reaching import Session, Trust, believing
from waystage.filesystems.entries import fsspec_info
from waystage.wan.address import DEFAULT_PORT

BLOCK_BYTES = 4 << 20
"""Read at a time: a round trip costs as much as some of it."""

PREFIX = "waystage://"


class FarFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The directories of a server, as `fsspec.filesystem("waystage", host="far.example.org")`.

    Paths are absolute at the server; its rights hold, and no path leads through a symbolic link. `username`: the user of
    the server, by default the one of this user's key. `identity`: the file of that key. `known_hosts`, `server_key`,
    `trust_new`: which servers to trust, as in `waystage copy`. One connection is kept for listings and for parts of
    files; files and trees are moved by `waystage.copy`, so that they appear when they are complete, and an interrupted
    call is resumed by the same call. Errors: FileNotFoundError, FileExistsError, PermissionError, ConnectionError, and
    OSError for others, each with the server's sentence.
    """

    protocol = "waystage"
    root_marker = "/"

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        username: str = "",
        identity: str | os.PathLike[str] | None = None,
        known_hosts: str | os.PathLike[str] | None = None,
        server_key: str | None = None,
        trust_new: bool = False,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self.host, self.port, self.username = host, int(port), username
        self._trust = Trust(
            None if identity is None else Path(identity),
            None if known_hosts is None else Path(known_hosts),
            server_key,
            trust_new,
        )
        self._tree: RemoteTree | None = None
        self._connecting = Lock()
        self._process = os.getpid()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = os.fspath(path)
        if text.startswith(PREFIX):
            text = "/" + text.removeprefix(PREFIX).partition("/")[2]
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith(PREFIX):
            return {}
        server = path.removeprefix(PREFIX).partition("/")[0]
        username, _, server = server.rpartition("@")
        host, colon, port = server.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = server, ""
        found: dict[str, Any] = {"host": host.removeprefix("[").removesuffix("]")}
        found |= {"username": username} if username else {}
        return found | ({"port": int(port)} if port.isdigit() else {})

    def unstrip_protocol(self, name: str) -> str:
        """The whole address of a path."""
        return f"{PREFIX}{self._server}:{self.port}{self._strip_protocol(name)}"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """Entries of a directory, of any other entry only itself: their paths, or with `detail` their attributes.

        `size` in bytes, `mtime` in s since 1970, `type` of `file`, `directory`, `link` and `other`, `mode`, `uid`,
        `gid`, `destination` of a link. Raises FileNotFoundError, PermissionError.
        """
        path = self._strip_protocol(path)
        entries = self._ask("list", path)[0]
        if not (len(entries) == 1 and entries[0][0] != "d" and self.info(path)["type"] != "directory"):
            found = [_about(entry, f"{path.rstrip('/')}/{os.fsdecode(entry[1])}") for entry in entries]
        else:
            found = [_about(entries[0], path)]
        found.sort(key=lambda about: str(about["name"]))
        return found if detail else [about["name"] for about in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Attributes of the entry itself, as in `ls`. Raises FileNotFoundError, PermissionError."""
        path = self._strip_protocol(path)
        entries = self._ask("list", path, flag=True)[0]
        if not entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _about(entries[0], path)

    def modified(self, path: str) -> datetime:
        """When the content of an entry changed, UTC."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a directory, and those above it. Raises FileExistsError, PermissionError."""
        path = self._strip_protocol(path)
        if create_parents:
            self._make_above(path)
        self._ask("make", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it. Raises FileExistsError unless `exist_ok`."""
        if exist_ok:
            self._ask("make", self._strip_protocol(path), flag=True)
        else:
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory. Raises NotADirectoryError, OSError where it is not empty."""
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._ask("remove", self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Remove a file, or a symbolic link itself. Raises FileNotFoundError, IsADirectoryError."""
        if self.info(path)["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._ask("remove", self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove entries, with `recursive` directories with all that is in them.

        Raises FileNotFoundError, and OSError where some entries could not be removed.
        """
        if maxdepth is not None:
            raise NotImplementedError("maxdepth is not supported: remove the entries one by one")
        for each in self.expand_path(path, recursive=False):
            if not recursive and self.isdir(each):
                self.rmdir(each)
                continue
            _, _, problems = self._ask("remove", each, flag=recursive)
            if problems:
                first, text = problems[0]
                raise OSError(
                    errno.ENOTEMPTY,
                    f"{len(problems):,} entries were not removed, the first {os.fsdecode(first)!r}: {text}",
                    each,
                )

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Rename an entry in one step, in place of a file of that name. Raises FileNotFoundError, OSError."""
        self._ask("rename", self._strip_protocol(path1), self._strip_protocol(path2), flag=True)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Not supported: a server copies nothing to itself."""
        raise NotImplementedError("a server copies nothing to itself: get the file and put it")

    def get_file(self, rpath: str, lpath: Any, **kwargs: Any) -> None:
        """Copy a file from the server. Raises FileNotFoundError, IsADirectoryError, OSError."""
        if self.info(rpath)["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        self._copy(self._far(rpath), Path(lpath), rpath)

    def put_file(self, lpath: Any, rpath: str, **kwargs: Any) -> None:
        """Copy a file to the server. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        self._make_above(self._strip_protocol(rpath))
        if self.isdir(rpath):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), rpath)
        self._copy(Path(lpath), self._far(rpath), rpath)

    def get(self, rpath: Any, lpath: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy files from the server, with `recursive` a directory as one copy: into `lpath` where that is a directory
        or ends with a slash, else as `lpath`; with a slash at the end of `rpath` its contents."""
        if recursive and not kwargs and _is_plain(rpath) and self.isdir(rpath):
            lpath = os.fspath(lpath)
            if not rpath.endswith("/") and (lpath.endswith("/") or os.path.isdir(lpath)):
                lpath = os.path.join(lpath, os.path.basename(self._strip_protocol(rpath)))
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            self._copy(self._far(rpath), Path(lpath), rpath)
        else:
            super().get(rpath, lpath, recursive=recursive, **kwargs)

    def put(self, lpath: Any, rpath: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copy files to the server, with `recursive` a directory as one copy, named as by `get`."""
        if recursive and not kwargs and _is_plain(lpath) and os.path.isdir(lpath):
            there = self._strip_protocol(rpath)
            if not os.fspath(lpath).endswith("/") and (rpath.endswith("/") or self.isdir(there)):
                there = f"{there.rstrip('/')}/{os.path.basename(os.path.abspath(lpath))}"
            self._make_above(there)
            self._copy(Path(lpath), self._far(there), there)
        else:
            super().put(lpath, rpath, recursive=recursive, **kwargs)

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        with self._connecting:
            tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, cache_options: Any = None, **kwargs: Any
    ) -> Any:
        kwargs.pop("autocommit", None)
        if mode == "rb":
            about = self.info(path)
            if about["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            size = BLOCK_BYTES if block_size in (None, "default") else block_size
            return FarFile(self, about, size, cache_options, **kwargs)
        if mode in ("wb", "xb"):
            if mode == "xb" and self.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return Upload(self, path)
        raise ValueError(f"mode {mode!r}: a file at a server is read (rb) or written as a whole (wb, xb)")

    @property
    def _server(self) -> str:
        """As in an address: `[USER@]HOST`, an IPv6 address in brackets."""
        user = f"{self.username}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{user}{host}"

    def _far(self, path: str) -> str:
        return f"{self._server}:{self._strip_protocol(path)}"

    def _make_above(self, path: str) -> None:
        above = self._parent(path)
        if not self.isdir(above):
            self._ask("make", above, flag=True)

    def _copy(self, source: Path | str, destination: Path | str, path: str) -> None:
        trust = self._trust
        try:
            copy(
                source,
                destination,
                port=self.port,
                identity=trust.identity,
                known_hosts=trust.known_hosts,
                server_key=trust.server_key,
                trust_new=trust.trust_new,
            )
        except CopyFailed as error:
            raise OSError(errno.EIO, str(error), path) from error

    def _ask(self, what: str, *paths: str, flag: bool = False) -> Any:
        names = [os.fsencode(path) for path in paths]
        return self._at_tree(lambda tree: tree.ask(what, names, flag), what, paths)

    def _read(self, path: str, offset: int, length: int) -> Any:
        return self._at_tree(lambda tree: tree.read(os.fsencode(path), offset, length), "read", (path,))

    def _at_tree(self, request: Any, what: str, paths: tuple[str, ...]) -> Any:
        if self._process != os.getpid():
            # Forked: the connection is the other process's, as is a thread that may hold the lock.
            self._process, self._tree, self._connecting = os.getpid(), None, Lock()
        try:
            with self._connecting:
                tree = self._tree
                if tree is None:
                    return self._first(request)
            return request(tree)
        except WanError as error:
            raise self._as_oserror(error, what, paths) from error

    def _first(self, request: Any) -> Any:
        """The first request, for which it is found out whom to trust."""
        session = Session(self.port, "fair", None, None)

        def attempt(known: str | None, key: Path) -> Any:
            tree = RemoteTree(session.peer(self.host, self.username, key, known))
            try:
                answer = request(tree)
            except WanError as error:
                if error.kind == "ends":  # of the path, not of the session
                    self._tree = tree
                raise
            self._tree = tree
            return answer

        return believing(self.host, self.port, self._trust, Output(quiet=True), attempt)

    def _as_oserror(self, error: WanError, what: str, paths: tuple[str, ...]) -> OSError:
        """What fsspec's callers expect. The server says only in words why a path cannot be used: it is looked at."""
        if error.kind in ("denied", "untrusted"):
            return PermissionError(errno.EACCES, str(error), paths[0])
        if error.kind in ("lost", "unreachable", "turned-away"):
            return ConnectionError(errno.ECONNRESET, str(error))
        if error.kind != "ends":
            return OSError(errno.EIO, str(error), paths[0])
        with suppress(OSError):
            if what == "make" and self.exists(paths[0]):
                return FileExistsError(errno.EEXIST, str(error), paths[0])
            at = self._parent(paths[0]) if what == "make" else paths[0]
            if not self.exists(at):
                return FileNotFoundError(errno.ENOENT, str(error), at)
        return OSError(errno.EIO, str(error), paths[0])


class FarFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file at a server, read in parts. Raises OSError where it changes meanwhile."""

    def __init__(
        self, fs: FarFileSystem, about: dict[str, Any], block_size: int, cache_options: Any, **kwargs: Any
    ) -> None:
        self._seen = (about["size"], about["mtime"])
        super().__init__(
            fs, about["name"], "rb", block_size, cache_options=cache_options, size=about["size"], **kwargs
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        data, entry = self.fs._read(self.path, start, end - start)
        seen = None if entry is None else (entry[2], _seconds(entry))
        if seen != self._seen:
            raise OSError(errno.ESTALE, f"{self.path} changed while it was read: open it again", self.path)
        return bytes(data)


class Upload(io.BufferedWriter):
    """A file that is written on this machine, and copied to the server when it is closed; not where its
    `with` block ended by an exception."""

    def __init__(self, fs: FarFileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        self._held = tempfile.NamedTemporaryFile(prefix="waystage-put-", delete=False)  # noqa: SIM115
        super().__init__(io.FileIO(os.dup(self._held.fileno()), "wb"))

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def discard(self) -> None:
        """Send nothing."""
        self._path = ""

    def close(self) -> None:
        """Copy what was written. Raises OSError."""
        if self.closed:
            return
        try:
            super().close()
            if self._path:
                self._fs.put_file(self._held.name, self._path)
        finally:
            self._held.close()
            with suppress(FileNotFoundError):
                os.unlink(self._held.name)


def _is_plain(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and not set("*?[") & set(os.fspath(path))


def _seconds(entry: Any) -> float:
    return float(entry[3] + entry[4] / 1e9)


def _about(entry: Any, path: str) -> dict[str, Any]:
    """An entry of the native module as fsspec has it."""
    letter, _, size, _, _, mode, uid, gid, target = entry
    found = fsspec_info(path, letter, size, _seconds(entry), mode, uid, gid)
    return found | ({"destination": os.fsdecode(target)} if letter == "l" else {})
