"""Comparison of trees and catalogs for `waystage compare` and `waystage verify`.

Arrives: two trees and what to compare.
Leaves: differences as lines or one JSON object; exit status 1 if there are any.
Must not know: how trees are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.cli.common import ExitCode, Output
from waystage.cli.many_nodes import joined
from waystage.cli.paths import named_lists, print_null, to_copy

if TYPE_CHECKING:
    from waystage.nodes import Where
    from waystage.trees import Comparison, Wanted


def compare_trees(
    first: Path, second: Path, wanted: Wanted, top: int, null: bool, nodes: Where | None, output: Output
) -> int:
    """Report differences in both directions."""
    found = _compared(first, second, wanted, nodes, output)
    return _tell(found, (found.only_first, found.only_second), top, null, output)


def verify_copy(
    first: Path, second: Path, wanted: Wanted, top: int, null: bool, nodes: Where | None, output: Output
) -> int:
    """Report entries of the first tree that are missing or differ in the second; ignore additional ones."""
    found = _compared(first, second, wanted, nodes, output)
    return _tell(found, (found.only_first, []), top, null, output)


def _compared(first: Path, second: Path, wanted: Wanted, nodes: Where | None, output: Output) -> Comparison:
    if nodes is None:
        from waystage.trees import compare

        with output.progress() as progress:
            return compare(first, second, wanted, progress)
    with output.progress() as progress, joined(nodes, output, "waystage.trees_on_nodes") as engine:
        from waystage.trees_on_nodes import compare_on_nodes

        return compare_on_nodes(engine, first, second, wanted, progress, directory=nodes.directory)


def _tell(
    found: Comparison, lacking: tuple[list[bytes], list[bytes]], top: int, null: bool, output: Output
) -> int:
    from waystage.display import display, named

    if null:
        print_null(to_copy(found.only_first, found.changed), output)
        for path, text in found.errors[:top]:
            output.note(f"{display(path)}: {text}")
        return _status(found, lacking)

    value: dict[str, Any] = {
        **named_lists(only_first=found.only_first, only_second=found.only_second),
        "changed": [
            named(path)
            | {"what": what}
            | ({"content": vars(found.contents[path])} if path in found.contents else {})
            for path, what in sorted(found.changed.items())
        ],
        "errors": [named(path) | {"error": text} for path, text in found.errors],
        "same": found.same,
        "bytes_read": found.bytes_read,
    }
    lines = [f"{sign} {display(p)}" for sign, paths in zip("-+", lacking, strict=True) for p in paths[:top]]
    lines += [
        f"~ {display(path) or '.'} ({', '.join(what)})" for path, what in sorted(found.changed.items())[:top]
    ]
    summary = (
        f"{len(found.only_first):,} only in the first, {len(found.only_second):,} only in the second,"
        f" {len(found.changed):,} different, {found.same:,} equal"
    )
    output.result(value, "\n".join([*lines, summary]))
    if not output.json:
        for path, text in found.errors[:top]:
            output.note(f"{display(path)}: {text}")
    return _status(found, lacking)


def _status(found: Comparison, lacking: tuple[list[bytes], list[bytes]]) -> int:
    if found.changed or any(lacking):
        return ExitCode.FAILED
    return ExitCode.PARTIAL if found.errors else ExitCode.OK
