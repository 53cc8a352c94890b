"""What the command line leaves, for tests that run it as a user does (fixture `waystage`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """A finished run of the command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as the one JSON object that `--json` promises."""
        return json.loads(self.out)


Waystage = Callable[..., Ran]
"""`waystage("lab", "status", "--json")` runs the command in a scratch directory."""
