"""The manifest of a catalog, which detects its own damage.

Arrives: bytes of a manifest, or what one is to say.
Leaves: the same as values, all of them of the documented kind; or one clear error.
Must not know: what the parts hold.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from waystage._native import digest_bytes
from waystage.catalog.errors import CatalogError, CatalogHidden
from waystage.catalog.summary import Summary

FORMAT = "waystage-catalog"
MANIFEST = "_catalog.json"
"""Readers of Parquet folders skip names with an underscore."""

VERSION = 2
"""Incremented where a reader of the former version would misread; new columns do not increment it."""

READ_VERSIONS = (1, 2)
"""Version 1 has no checksum of its manifest, no seals in its parts, and times between 1677 and 2262 alone."""

MOST_BYTES = 1 << 30

HIDDEN = (
    "a catalog shows what its builder could see, and is the builder's alone; build your own, or ask for one made by"
    " 'waystage catalog share'"
)

GAPS = {
    "recording": "a recording is in progress, or was killed",
    "before": "what the tree held before the recording",
    "lost": "changes that came faster than they could be read",
    "unplaced": "changes whose path is unknown",
    "damaged": "records that could not be understood",
    "doubtful": "symbolic links that were pointed elsewhere after being used",
    "running": "processes that were still running at the end",
    "unseen": "what programs did that cannot be seen, such as static and set-user-ID ones",
    "blind": "what processes did past the C library, as by io_uring",
}
"""Why a recorded catalog may be incomplete."""


def is_catalog(path: Path) -> bool:
    """Whether a directory is a catalog rather than a tree."""
    return (path / MANIFEST).is_file()


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(frozen=True)
class Part:
    """One pair of files, of entries and of the directories that they are in."""

    number: int
    rows: int
    summary: dict[str, Any] | None = field(default=None, compare=False)
    """Totals of its entries as `Summary.plain` gives them; None in catalogs that have none."""
    section: str = ""
    """In a shared catalog, its folder."""
    tag: str = ""
    """Names no other part of this number, so that no program takes files of two versions of a catalog for one."""
    version: int = VERSION
    """Of the catalog that it was written for."""

    @property
    def entries(self) -> str:
        return self._name("entries")

    @property
    def directories(self) -> str:
        """Readers of folders skip a name with an underscore: it is another table."""
        return self._name("directories" if self.version == 1 else "_directories")

    @property
    def sealed(self) -> bool:
        return self.version > 1

    def _name(self, what: str) -> str:
        tag = f"-{self.tag}" if self.tag else ""
        return os.path.join(self.section, f"{what}-{self.number:05d}{tag}.parquet")


@dataclass
class Manifest:
    """The root of a catalog, its options and its parts. Times are seconds since 1970."""

    root: str
    """An absolute path; bytes that are no UTF-8 are kept as Python's surrogateescape does."""
    exclude: list[str] = field(default_factory=list)
    one_file_system: bool = False
    layouts: Literal["each", "attribute"] | None = "each"
    targets: list[tuple[int, str]] = field(default_factory=list)
    """The number and the name of every storage target that a layout names."""
    trusting: bool = False
    """In a journal: whether parts of an older catalog were taken over, to be kept where directories say so."""
    started: float = 0.0
    finished: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    gaps: dict[str, int] = field(default_factory=dict)
    """What a recording may have missed, by cause (see GAPS): `refresh` completes it."""
    parts: list[Part] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    """In a shared catalog, the folders that hold parts, each with its own manifest."""

    def asked_for(self) -> tuple[object, ...]:
        """What two builds must have in common for one to resume the other."""
        return (self.root, self.exclude, self.one_file_system, self.layouts)

    def save(self, path: Path) -> None:
        """Write it durably and atomically."""
        unfinished = path.with_name(path.name + ".unfinished")
        value = {"format": FORMAT, "version": VERSION} | asdict(self)
        text = json.dumps(value | {"checksum": checksum_of(value)}, indent=1)
        with open(unfinished, "w", encoding="ascii", opener=private) as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Raises CatalogError where it is not a manifest of a version that this Waystage reads."""
        return cls.parse(read(path.name, path), path)

    @classmethod
    def parse(cls, data: bytes, path: Path) -> Manifest:
        """The same, from bytes read at `path`."""
        try:
            value = json.loads(data.decode("ascii"))
            known_format, version = value["format"], value["version"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise CatalogError(f"{path} is damaged or of no catalog: build the catalog anew") from None
        if known_format != FORMAT:
            raise CatalogError(f"{path} is not a catalog of Waystage but of {str(known_format)[:40]!r}")
        if type(version) is not int or version not in READ_VERSIONS:
            raise CatalogError(
                f"{path} has version {str(version)[:40]}, and this Waystage reads versions 1 and 2:"
                " build the catalog anew, or use the Waystage that wrote it"
            )
        try:
            checksum = value.pop("checksum", None)
            if (version > 1 or checksum is not None) and checksum != checksum_of(value):
                raise ValueError("the checksum is another")
            return cls._of(value, version)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
            raise CatalogError(f"{path} is damaged: build the catalog anew") from None

    @classmethod
    def _of(cls, value: dict[str, Any], version: int) -> Manifest:
        plain = msgspec.convert(value, _Plain)
        if "\0" in plain.root or not (plain.root.startswith("/") or plain.root == ""):
            raise ValueError("the root is no absolute path")
        if not all(math.isfinite(moment or 0.0) for moment in (plain.started, plain.finished)):
            raise ValueError("a time is none")
        for part in plain.parts:
            if part.summary is not None:
                Summary.of(part.summary)
        parts = [
            Part(part.number, part.rows, part.summary, "", part.tag, min(version, part.version))
            for part in plain.parts
        ]
        return cls(
            plain.root,
            plain.exclude,
            plain.one_file_system,
            plain.layouts,
            plain.targets,
            plain.trusting,
            plain.started,
            plain.finished,
            plain.counts,
            plain.errors,
            plain.gaps,
            parts,
            [_below(section) for section in plain.sections],
        )


class _PlainPart(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(ge=0, le=10**9)]
    rows: Count
    summary: dict[str, Any] | None = None
    tag: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,32}$")] = ""
    version: Literal[1, 2] = 2


class _Plain(msgspec.Struct):
    """The schema of a manifest. Unknown fields are ignored: a later version may have more."""

    root: str
    parts: list[_PlainPart]
    exclude: list[str] = []
    one_file_system: bool = False
    layouts: Literal["each", "attribute"] | None = "each"
    targets: list[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], str]] = []
    trusting: bool = False
    started: float = 0.0
    finished: float | None = None
    counts: dict[str, Count] = {}
    errors: list[tuple[str, str]] = []
    gaps: dict[str, Count] = {}
    sections: list[str] = []


def read(name: str, path: Path, folder: int | None = None) -> bytes:
    """The bytes of a manifest: `path` as it is shown, `name` as it is opened in `folder`. Raises CatalogError."""
    try:
        fd = os.open(
            str(path) if folder is None else name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        with open(fd, "rb") as file:
            data = file.read(MOST_BYTES)
    except FileNotFoundError:
        raise CatalogError(f"{path.parent} is no catalog: it has no {path.name}") from None
    except NotADirectoryError:
        raise CatalogError(f"{path.parent} is no catalog: it is not a folder") from None
    except PermissionError:
        raise CatalogHidden(f"{path.parent}: permission denied: {HIDDEN}") from None
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return data


def explain(gaps: dict[str, int]) -> str:
    """What may be missing, as text."""
    told = [
        f"{GAPS[name]} ({count:,})" if count > 1 else GAPS[name]
        for name, count in gaps.items()
        if name in GAPS
    ]
    return "; ".join(told)


def checksum_of(value: dict[str, Any]) -> str:
    """The digest of a manifest without its checksum; independent of spaces and the order of names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"{digest_bytes(text.encode('ascii')):016x}"


def private(path: str, flags: int) -> int:
    """Opens for `open`: catalogs are private to their owner, regardless of the umask
    (docs/decisions/0014-catalog.md)."""
    return os.open(path, flags, 0o600)


def _below(section: str) -> str:
    """The path of a section, which leads nowhere else. Raises ValueError."""
    if not section or section.startswith("/") or "\0" in section or ".." in section.split("/"):
        raise ValueError(section)
    return section
