"""Layouts as text: `stripes=4,stripe_size=1Mi`, parts of a progressive layout separated by slashes, size classes.

Arrives: text of the command line; the bytes of a file of size classes.
Leaves: size classes with their parts; the same as text.
Must not know: file systems.

A file of size classes is what `waystage restripe --suggest` writes:

    format: waystage-layouts
    version: 1
    classes:
      - {most: 1Mi, layout: stripes=1}
      - {layout: to=4Mi,stripes=1/stripes=all,stripe_size=4Mi}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from waystage.bounded import read_bounded
from waystage.native_options.restripes import SizeClass, StripePart
from waystage.outputs import write_whole
from waystage.restripe.errors import LayoutTextError
from waystage.units import UnitError, parse_size
from waystage.yaml_text import YamlError, load_plain

FORMAT = "waystage-layouts"
VERSION = 1

UNIT = 64 << 10
"""Lustre's smallest unit of a stripe; every stripe is a multiple of it."""

MOST_STRIPES = 65503
MOST_FILE_BYTES = 1 << 20
_KEYS = ("stripes", "stripe_size", "pool", "to")


def parse_layout(text: str) -> tuple[StripePart, ...]:
    """The parts of a layout, in order; only the last has no end. Raises LayoutTextError."""
    parts = [_part(part.strip(), text) for part in text.split("/")]
    for number, part in enumerate(parts, 1):
        if (part.end is None) != (number == len(parts)):
            raise LayoutTextError(
                f"layout {text!r}: give `to` in every part but the last: to=4Mi,stripes=1/stripes=all"
            )
    ends = [part.end for part in parts if part.end is not None]
    if any(one >= other for one, other in pairwise(ends)):
        raise LayoutTextError(f"layout {text!r}: the parts must rise: give each `to` above the one before it")
    return tuple(parts)


def _part(text: str, layout: str) -> StripePart:
    values: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals or key not in _KEYS:
            raise LayoutTextError(
                f"layout {layout!r}: {item!r} is not one of stripes=N|all, stripe_size=SIZE, pool=NAME, to=SIZE"
            )
        if key in values:
            raise LayoutTextError(f"layout {layout!r}: {key} is given twice in one part")
        values[key] = value
    if not values:
        raise LayoutTextError(f"layout {layout!r} has an empty part: write e.g. stripes=4,stripe_size=1Mi")
    size = _size(values.get("stripe_size", "1Mi"), "stripe_size", layout, 4 << 30)
    end = _size(values["to"], "to", layout, 1 << 62) if "to" in values else None
    if size % UNIT or size == 4 << 30:
        raise LayoutTextError(
            f"layout {layout!r}: stripe_size must be a multiple of 64Ki and below 4Gi, e.g. 1Mi"
        )
    if end is not None and end % size:
        raise LayoutTextError(f"layout {layout!r}: `to` must be a multiple of the part's stripe_size")
    pool = values.get("pool")
    if pool is not None and not 1 <= len(pool.encode()) <= 15:
        raise LayoutTextError(f"layout {layout!r}: the name of a pool has 1 to 15 bytes")
    return StripePart(
        end=end, stripes=_stripes(values.get("stripes", "1"), layout), stripe_size=size, pool=pool
    )


def _stripes(text: str, layout: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MOST_STRIPES):
        raise LayoutTextError(f"layout {layout!r}: stripes is {text!r}: give 1 to {MOST_STRIPES}, or all")
    return int(text)


def _size(text: str, key: str, layout: str, most: int) -> int:
    try:
        return parse_size(text, least=UNIT, most=most)
    except UnitError as error:
        raise LayoutTextError(f"layout {layout!r}: {key}: {error}") from None


def layout_text(parts: Sequence[StripePart]) -> str:
    """The text that `parse_layout` reads back."""

    def one(part: StripePart) -> str:
        items = [] if part.end is None else [f"to={size_text(part.end)}"]
        items.append(f"stripes={'all' if part.stripes is None else part.stripes}")
        items.append(f"stripe_size={size_text(part.stripe_size)}")
        return ",".join([*items, *([f"pool={part.pool}"] if part.pool else [])])

    return "/".join(map(one, parts))


def size_text(size: int) -> str:
    """A size as `parse_size` reads it: 4Mi."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = 1 << (10 * " KMGT".index(unit[0]))
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def parse_layouts(given: str) -> list[SizeClass]:
    """The classes of `--layout`: the text of one layout, or the path of a file of classes. Raises LayoutTextError."""
    if "=" in given and not Path(given).exists():
        return [SizeClass(parts=parse_layout(given))]
    return load_classes(Path(given))


def load_classes(path: Path) -> list[SizeClass]:
    """The classes of a file, by rising size. Raises LayoutTextError, also where it cannot be read."""
    try:
        document = load_plain(read_bounded(path, MOST_FILE_BYTES))
    except OSError as error:
        raise LayoutTextError(
            f"{path} cannot be read ({error.strerror or error}): give a file of size classes, or e.g. stripes=4"
        ) from None
    except YamlError as error:
        raise LayoutTextError(f"{path}:{error.line}: {error}") from None
    except ValueError as error:
        raise LayoutTextError(str(error)) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise LayoutTextError(
            f"{path} is no file of size classes: waystage restripe TREE --suggest writes one"
        )
    if document.get("version") != VERSION:
        raise LayoutTextError(
            f"{path} is of version {document.get('version')}: this Waystage reads {VERSION}"
        )
    classes = document.get("classes")
    if not isinstance(classes, list) or not classes:
        raise LayoutTextError(f"{path}: classes: give a list of {{most: SIZE, layout: TEXT}}")
    found = [_class(item, f"{path}: classes[{index}]") for index, item in enumerate(classes)]
    bounds = [one.most_bytes for one in found]
    for before, after in pairwise(bounds):
        if before is None or (after is not None and after <= before):
            raise LayoutTextError(
                f"{path}: classes: give them by rising `most`, and none after one without it"
            )
    return found


def _class(item: Any, where: str) -> SizeClass:
    if not isinstance(item, dict) or not isinstance(item.get("layout"), str):
        raise LayoutTextError(f"{where}: give {{most: SIZE, layout: TEXT}}")
    unknown = sorted(map(str, set(item) - {"most", "layout", "reason", "files", "bytes"}))
    if unknown:
        raise LayoutTextError(f"{where}: unknown key {unknown[0]!r}: the keys are most, layout")
    try:
        most = None if item.get("most") is None else parse_size(item["most"], least=0, most=1 << 62)
    except UnitError as error:
        raise LayoutTextError(f"{where}.most: {error}") from None
    try:
        return SizeClass(most_bytes=most, parts=parse_layout(item["layout"]))
    except LayoutTextError as error:
        raise LayoutTextError(f"{where}: {error}") from None


def save_classes(path: Path, classes: Sequence[tuple[SizeClass, str]]) -> None:
    """Write classes with their reasons, as `load_classes` reads them. Raises OSError."""
    lines = [f"format: {FORMAT}", f"version: {VERSION}", "classes:"]
    for one, reason in classes:
        item = {} if one.most_bytes is None else {"most": size_text(one.most_bytes)}
        item |= {"layout": layout_text(one.parts), "reason": reason}
        lines.append(f"  - {json.dumps(item)}")
    write_whole(path, ("\n".join(lines) + "\n").encode())
