"""docs/reference/events.md says what events.py declares: every type, every field, its schema and kind."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from waystage import events

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"


def _shipped() -> dict[str, type[msgspec.Struct]]:
    kinds = (events.Event, events.Action)
    return {
        name: value
        for name, value in vars(events).items()
        if isinstance(value, type) and issubclass(value, kinds) and value not in kinds
    }


def _rows() -> dict[str, tuple[str, str, list[str]]]:
    """Name -> (schema, kind, fields) as the page has them."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`\w+`", cells[0]):
            fields = re.findall(r"`(\w+)`", cells[3])
            found[cells[0].strip("`")] = (cells[1], cells[2], fields)
    return found


def test_the_page_lists_every_type_with_its_fields() -> None:
    wanted = {}
    for name, cls in _shipped().items():
        action = issubclass(cls, events.Action)
        kind = "action" if action else "telemetry" if cls.telemetry else "control"  # type: ignore[attr-defined]
        wanted[name] = (str(cls.schema), kind, list(cls.__struct_fields__))  # type: ignore[attr-defined]
    assert _rows() == wanted
