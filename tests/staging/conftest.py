"""A stager for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from staging_support import Stage, stage_in_folder


@pytest.fixture
def stage() -> Iterator[Stage]:
    with stage_in_folder() as made:
        yield made
