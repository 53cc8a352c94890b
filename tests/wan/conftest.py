"""Emulated paths that are gone after each test, whatever it did to them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from wan_support import Up
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

NUMBERS = itertools.count()


@pytest.fixture
def new_name() -> Iterator[str]:
    """A name of this test's own; whatever is up under it is taken down."""
    name = f"t{os.getpid()}_{next(NUMBERS)}"
    yield name
    wan.down(name)


@pytest.fixture
def up() -> Iterator[Up]:
    """Bring paths up by properties: the same in both directions."""
    names = []

    def make(seed: int = 1, device_mtu: int | None = None, **properties: str) -> str:
        name = f"t{os.getpid()}_{next(NUMBERS)}"
        names.append(name)
        profile: Any = wan.Profile(both=wan.said(properties))
        paths.up(name, msgspec.structs.replace(profile, seed=seed), device_mtu=device_mtu)
        return name

    yield make
    for name in names:
        wan.down(name)
