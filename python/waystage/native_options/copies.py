"""Options of the native module's copies.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystage._native import NameList


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """Which regular files are copied; times in seconds since 1970."""

    min_size: int | None = None
    max_size: int | None = None
    since: int | None = None
    """Changed at this time or later."""
    until: int | None = None
    """Changed at this time or before."""


@dataclass(frozen=True, kw_only=True)
class BackupOptions:
    """Where replaced and deleted files go."""

    directory: str | None = None
    """Relative to the destination; None for beside them."""
    suffix: bytes = b""


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """What a copy transfers and preserves, on one machine or between two."""

    exclude: Sequence[bytes] = ()
    """Patterns over names, or over paths below the source where they contain a slash."""
    include: Sequence[bytes] | None = None
    """Copy only files that match one of these patterns."""
    names: NameList | None = None
    """Copy only these entries, directories with their contents."""
    limits: FileLimits = FileLimits()
    backup: BackupOptions | None = None
    copy_links: bool = False
    """Follow symbolic links of a source on this machine: copy what they lead to."""
    one_file_system: bool = False
    update: str = "changed"
    """Which existing files are replaced: `changed` (size or time), `newer`, `missing` (none), `content` or `always`."""
    fsync: str = "none"
    """When data is forced to storage: `none` (never), at the `end`, or `each` file before its rename."""
    verify: str = "none"
    """Whether written files are read back: `none`, `cached` (from memory) or `storage`."""
    restart: bool = False
    """Discard the partial files of an interrupted copy."""
    xattrs: bool = True
    owners: bool = True
    hard_links: bool = True


@dataclass(frozen=True, kw_only=True)
class TreeCopyOptions(CopyOptions):
    """Options of `TreeCopy`."""

    workers: int
    """Threads that copy, at least 1."""
    order: str = "auto"
    """`auto`: by storage target where files are striped and the list or the file system names their targets; `walk`: as
    files are found."""
    readers_per_target: int | None = None
    """Threads that read from one storage target at once; None for about as many as there are for each."""
    reflink: str = "auto"
    """Whether files share blocks with the source: `auto` (where the file system can), `always` (or the file fails) or
    `never`. What is verified or limited in rate is not shared by `auto`."""
    rate_bytes_per_s: int | None = None
    divide: bool = False
    """Only prepare files of more than an extent, for `FileFill`; the same copy without this completes them."""
    dry_run: bool = False
    read_sources: bool = False
    """In a dry run, read the files that would be copied."""
    log: bool = False
    """Keep what is done with each entry, for `take_done`."""
    share: tuple[str, bool] | None = None
    """Where several processes copy different `names` to one destination at once: the key of this one, 32 hexadecimal
    digits, and whether it sets the attributes of directories. Directories among the names are then only themselves."""


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """Options of `TreeDelete`; those before `most` as in the copy."""

    exclude: Sequence[bytes] = ()
    include: Sequence[bytes] | None = None
    copy_links: bool = False
    one_file_system: bool = False
    most: int | None = None
    """Where more would be deleted, none is."""
    backup: BackupOptions | None = None
    workers: int
    dry_run: bool = False
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class RemoveOptions(CopyOptions):
    """Options of `SourceRemove`, beside those that select entries of the copy."""

    single: tuple[bytes, bytes] | None = None
    """One file: its name at the source and at the destination."""
    workers: int
    dry_run: bool = False
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class FillOptions:
    """Options of `FileFill`, of which the first two are as `TreeCopy.divided` gives them."""

    names: tuple[bytes, bytes, bytes, bytes]
    seen: tuple[int, int, tuple[int, int]]
    extents: Sequence[int]
    """Those that this process writes."""
    workers: int
    verify: str = "none"
    rate_bytes_per_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteCopyOptions(CopyOptions):
    """Options of `RemoteCopy`."""

    workers: int = 4
    """Threads that read or write files at each host."""
    connections: int = 1
    memory_bytes: int = 256 << 20
    """For data in flight, at each host, over all connections."""
    known_as: str | None = None
    """The name of the peer in messages, where it is not the host that is connected to."""
    dry_run: str | None = None
    """`plan`, `disk` (also read the source) or `network` (also send generated bytes)."""
    privileged: bool = False
    """When pulling, accept owners, set-user-id bits, devices and system attributes."""
    compress: bool = False
    """Compress contents on the path, where they become shorter and the server knows of it."""
