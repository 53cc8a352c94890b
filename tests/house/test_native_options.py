"""Every field of the option classes is read by the native module, and it reads no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from waystage import _native, native_options
from waystage.native_options.aggregators import AggregatorOptions
from waystage.native_options.copies import (
    BackupOptions,
    DeleteOptions,
    FileLimits,
    FillOptions,
    RemoteCopyOptions,
    RemoveOptions,
    TreeCopyOptions,
)
from waystage.native_options.datasets import AugmentationOptions, DedupProfileOptions
from waystage.native_options.loads import LoadingOptions, MeasureOptions, SimulatedLoadOptions
from waystage.native_options.peers import Peer
from waystage.native_options.proxies import ProxyOptions
from waystage.native_options.restripes import RestripeOptions, SizeClass, StripePart
from waystage.native_options.routes import RouteOptions
from waystage.native_options.servers import ServerOptions, ServerRoot, ServerUser
from waystage.native_options.walks import WalkOptions

ABSENT = Path("/absent")


class Recorded:
    """Options that note which of their fields are read."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._options, name)


def peer(key: Path = ABSENT) -> Peer:
    return Peer(host="localhost", port=1, user="ada", key=key, trusted=None)


def server(**more: Any) -> ServerOptions:
    usual = ServerOptions(
        listen="127.0.0.1:0", key=ABSENT, users=[], roots=[], connections=1, memory_bytes=1 << 24, workers=1
    )
    return dataclasses.replace(usual, **more)


def loading() -> LoadingOptions:
    return LoadingOptions(
        whole_files=True,
        seed=0,
        epoch=0,
        shuffle=False,
        rank=0,
        world=1,
        uneven="keep",
        loaders=1,
        best_loaders=None,
        in_order=True,
        memory_bytes=1 << 20,
        piece_bytes=1 << 20,
        steal=True,
        raises=True,
        resized=False,
    )


def restripe(**more: Any) -> RestripeOptions:
    return dataclasses.replace(RestripeOptions(classes=[], workers=1), **more)


def network() -> _native.Network:
    return _native.Network.fat_tree(2, 1e9, 1e9)


NO_PATHS = (np.zeros(1, np.int64), np.zeros(0, np.uint8))
NO_I64, NO_U64, NO_U32 = (np.zeros(0, kind) for kind in (np.int64, np.uint64, np.uint32))
NO_IMAGES = (*NO_PATHS, NO_I64, NO_I64, NO_I64, NO_U64)
NO_FILES = (*NO_IMAGES, NO_U64, NO_U32, NO_U32)

CALLS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "AggregatorOptions": (
        AggregatorOptions(socket="/absent/socket", listen="", name="n", token="t", app="a"),
        lambda o: _native.Aggregator(o),
    ),
    "TreeCopyOptions": (TreeCopyOptions(workers=1), lambda o: _native.TreeCopy(ABSENT, ABSENT / "to", o)),
    "DeleteOptions": (DeleteOptions(workers=1), lambda o: _native.TreeDelete(ABSENT, ABSENT / "to", o)),
    "RemoveOptions": (RemoveOptions(workers=1), lambda o: _native.SourceRemove(ABSENT, ABSENT / "to", o)),
    "FileLimits": (
        FileLimits(),
        lambda o: _native.TreeCopy(ABSENT, ABSENT / "to", TreeCopyOptions(workers=1, limits=o)),
    ),
    "BackupOptions": (
        BackupOptions(),
        lambda o: _native.TreeCopy(ABSENT, ABSENT / "to", TreeCopyOptions(workers=1, backup=o)),
    ),
    "FillOptions": (
        FillOptions(names=(b"", b"", b"", b""), seen=(0, 0, (0, 0)), extents=[], workers=1),
        lambda o: _native.FileFill(ABSENT, ABSENT, o),
    ),
    "RestripeOptions": (restripe(), lambda o: _native.TreeRestripe(ABSENT, o)),
    "SizeClass": (
        SizeClass(parts=[StripePart()]),
        lambda o: _native.TreeRestripe(ABSENT, restripe(classes=[o])),
    ),
    "StripePart": (
        StripePart(),
        lambda o: _native.TreeRestripe(ABSENT, restripe(classes=[SizeClass(parts=[o])])),
    ),
    "RemoteCopyOptions": (
        RemoteCopyOptions(),
        lambda o: _native.RemoteCopy(ABSENT, b"/", peer(), o, push=True),
    ),
    "Peer": (peer(), lambda o: _native.WanProbe(o)),
    "ProxyOptions": (ProxyOptions(), lambda o: _native.WanProxy(peer(), o)),
    "ServerOptions": (server(), lambda o: _native.WanServer(o)),
    "ServerUser": (ServerUser(name="ada", keys=[]), lambda o: _native.WanServer(server(users=[o]))),
    "ServerRoot": (ServerRoot(path=ABSENT), lambda o: _native.WanServer(server(roots=[o]))),
    "WalkOptions": (WalkOptions(threads=1), lambda o: _native.TreeWalk(ABSENT, o)),
    "LoadingOptions": (loading(), lambda o: _native.Loading(_native.LoadFiles(ABSENT), o)),
    "MeasureOptions": (
        MeasureOptions(target=0, skip=0, pieces=1, readers=1, piece_bytes=1, most_bytes=1),
        lambda o: _native.measure_target(_native.LoadFiles(ABSENT), o),
    ),
    "SimulatedLoadOptions": (
        SimulatedLoadOptions(
            whole_files=True,
            loaders=1,
            most_readers=None,
            in_order=True,
            steal=True,
            memory_bytes=1,
            piece_bytes=1,
        ),
        lambda o: _native.simulate_load(_native.LoadFiles(ABSENT), [], o),
    ),
    "DedupProfileOptions": (
        DedupProfileOptions(method="fast", threads=1),
        lambda o: _native.DedupProfile(ABSENT, NO_FILES, o),
    ),
    "AugmentationOptions": (
        AugmentationOptions(operations=[], seed=0, max_pixels=1, threads=1, target="files"),
        lambda o: _native.Augmentation(ABSENT, NO_IMAGES, o),
    ),
    "RouteOptions": (
        RouteOptions(),
        lambda o: network().route_loads("random", NO_U32, NO_U32, np.zeros(0), o),
    ),
}
BASES = {"CopyOptions"}
"""Tested as part of their subclasses."""


def test_every_option_class_is_covered() -> None:
    modules = (
        import_module(module.name)
        for module in iter_modules(native_options.__path__, f"{native_options.__name__}.")
    )
    classes = {
        name for module in modules for name, kind in vars(module).items() if dataclasses.is_dataclass(kind)
    }
    assert classes == set(CALLS) | BASES


@pytest.mark.parametrize("name", sorted(CALLS))
def test_all_fields_are_read_and_no_others(name: str) -> None:
    options, call = CALLS[name]
    recorded = Recorded(options)
    try:
        call(recorded)
    except (OSError, RuntimeError, ValueError):
        pass  # such as for the absent path, once all fields have been read
    assert recorded.read == {field.name for field in dataclasses.fields(options)}
