"""`waystage catalog query`: select and summarize entries of a catalog.

Arrives: a catalog and predicates.
Leaves: a list, totals, a histogram, or the result of SQL.
Must not know: how catalogs are stored.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.paths import print_null, refuse_both

if TYPE_CHECKING:
    import pyarrow as pa

    from waystage.catalog import Catalog
    from waystage.catalog.query import Filter


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", metavar="CATALOG", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", metavar="PATTERN", help="Match names, like find -name.")
@click.option("--path", metavar="PATTERN", help="Match paths below the root; * matches slashes.")
@click.option("--type", "types", metavar="LETTERS", default="", help="Of f, d, l, b, c, p, s.")
@click.option(
    "--size",
    metavar="[+-]N[cwbkMGT]",
    help="Compare sizes like find -size: rounded up to units, so -1M matches only empty files. Default unit: bytes.",
)
@click.option("--age", metavar="[+-]N[smhdw]", help="Compare the age of the mtime: older (+) or newer (-).")
@click.option("--uid", type=click.IntRange(0, (1 << 32) - 1), help="Match the numeric user ID.")
@click.option("--gid", type=click.IntRange(0, (1 << 32) - 1), help="Match the numeric group ID.")
@click.option("--links", metavar="[+-]N", help="Hard links.")
@click.option(
    "--storage-target",
    type=click.IntRange(0, (1 << 32) - 1),
    help="Match files with an object on this target.",
)
@click.option("--count", "answer", flag_value="count", help="Print only the number of entries and bytes.")
@click.option(
    "--histogram", type=click.Choice(["size", "age"]), help="Histogram of regular files by size or age."
)
@click.option(
    "--by",
    type=click.Choice(["directory", "type", "uid", "gid", "layout", "target"]),
    help="Totals by group, largest first.",
)
@click.option("--top", metavar="N", type=click.IntRange(1), help="The N largest.")
@click.option(
    "--order",
    type=click.Choice(["size", "mtime"]),
    default="size",
    show_default=True,
    help="Sort key of --top.",
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number of lines.")
@click.option("--null", "-0", "null", is_flag=True, help="Print unescaped paths, each ended by a NUL.")
@click.option("--absolute", is_flag=True, help="Print each path below the root of the catalogued tree.")
@click.option("--sql", metavar="QUERY", help="SQL query on the views entries and directories (needs DuckDB).")
@output_options
def query(
    target: Path,
    name: str | None,
    path: str | None,
    types: str,
    size: str | None,
    age: str | None,
    uid: int | None,
    gid: int | None,
    links: str | None,
    storage_target: int | None,
    answer: str | None,
    histogram: str | None,
    by: str | None,
    top: int | None,
    order: str,
    limit: int | None,
    null: bool,
    absolute: bool,
    sql: str | None,
    output: Output,
) -> None:
    """Query CATALOG. Entries must match all predicates; by default, their paths are listed.

    Only regular files count as bytes. A file with several hard links counts once in a total, and once in each group
    of --by and --histogram that contains one of its names.
    """
    from waystage.catalog import Catalog
    from waystage.catalog import query as ask
    from waystage.catalog.sql import sql as ask_sql
    from waystage.catalog.store import explain

    refuse_both(null, output)
    asked = [option for option in (answer, histogram, by, top, sql) if option is not None]
    if len(asked) > 1:
        raise UserError("give only one of --count, --histogram, --by, --top and --sql", ExitCode.USAGE)
    if absolute and (output.json or any(option is not None for option in (answer, histogram, by, sql))):
        raise UserError(
            "--absolute is for lists of paths: give it without --json, --count, --histogram, --by and --sql",
            ExitCode.USAGE,
        )
    if not set(types) <= set("fdlbcps"):
        raise UserError(f"--type {types}: give letters from f, d, l, b, c, p, s", ExitCode.USAGE)
    catalog = Catalog(target)
    if catalog.manifest.gaps:
        output.note(
            f"{target} may miss {explain(catalog.manifest.gaps)}: 'waystage catalog refresh' repairs it"
        )
    if catalog.hidden_sections:
        output.note(
            f"{target}: {catalog.hidden_sections:,} of its {len(catalog.manifest.sections):,} sections are omitted:"
            " the file system does not let you list their entries"
        )
    root = os.fsencode(catalog.root) if absolute else b""
    which = ask.Filter(
        name=None if name is None else os.fsencode(name),
        path=None if path is None else os.fsencode(path),
        types=types,
        size=size,
        age=age,
        uid=uid,
        gid=gid,
        links=links,
        target=storage_target,
    )
    if sql is not None:
        _show(_plain(ask_sql(catalog, sql)), limit, output)
    elif answer == "count":
        found = ask.totals(catalog, which)
        output.result(found, f"{found['entries']:,} entries, {found['bytes']:,} bytes")
    elif histogram == "size":
        _show(ask.size_histogram(catalog, which), limit, output)
    elif histogram == "age":
        _show(ask.age_histogram(catalog, which), limit, output)
    elif by == "target":
        names = dict(catalog.manifest.targets)
        rows = ask.by_target(catalog, which).to_pylist()
        _show([row | {"name": names.get(row["target"], "")} for row in rows], limit, output)
    elif by is not None:
        _show(
            _plain(ask.by_column(catalog, which, by), exact=output.json),
            limit or (None if output.json else 50),
            output,
        )
    elif top is not None:
        found_top = ask.top(catalog, which, order, top)
        _show(_listed(found_top, output.json, root), limit, output)
    else:
        _list(catalog, which, limit, null, output, root)


def _below(root: bytes, path: bytes) -> bytes:
    """The path below `root`; as it is where `root` is empty."""
    return os.path.join(root, path) if path else root


def _list(
    catalog: Catalog, which: Filter, limit: int | None, null: bool, output: Output, root: bytes
) -> None:
    import sys

    from waystage.catalog.export import rows
    from waystage.catalog.query import select
    from waystage.catalog.store import paths_of
    from waystage.display import display

    left = limit
    entries: list[dict[str, Any]] = []
    columns = None if output.json else ["directory", "name"]
    for piece in select(catalog, which, columns):
        piece = piece if left is None else piece.slice(0, left)
        if output.json:
            entries += rows(piece)
        else:
            paths = [_below(root, path) for path in paths_of(piece).to_pylist()]
            if null:
                print_null(paths, output)
            elif not output.quiet:
                sys.stdout.write("".join(display(path) + "\n" for path in paths))
        if left is not None:
            left -= piece.num_rows
            if left <= 0:
                break
    output.result({"entries": entries})


def _listed(found: pa.Table, exact: bool, root: bytes) -> list[dict[str, Any]]:
    from waystage.catalog.store import paths_of
    from waystage.display import display, named

    rows = []
    for path, row in zip(paths_of(found).to_pylist(), _plain(found), strict=True):
        seconds = row["mtime_seconds"]
        # As date(1) writes a time by its seconds: years beyond 9999 have no other form here.
        mtime = str(row["mtime"]) if seconds is None else f"@{seconds}"
        about = {"size": row["size"], "mtime": mtime, "uid": row["uid"]}
        rows.append((named(path) if exact else {"path": display(_below(root, path))}) | about)
    return rows


def _plain(found: pa.Table, exact: bool = False) -> list[dict[str, Any]]:
    """Rows with bytes as text and times in microseconds; with `exact`, also the bytes in base 64."""
    import pyarrow as pa

    from waystage.display import base64_of, display

    for index, column in enumerate(found.schema):
        if pa.types.is_timestamp(column.type):
            found = found.set_column(
                index, column.name, found[column.name].cast(pa.timestamp("us", "UTC"), safe=False)
            )

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return display(value)
        # DuckDB sums whole numbers as decimals of 38 digits.
        return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value

    rows = [{key: plain(value) for key, value in row.items()} for row in found.to_pylist()]
    for column in found.schema if exact else ():
        if pa.types.is_binary(column.type):
            for row, value in zip(rows, found[column.name].to_pylist(), strict=True):
                row[f"{column.name}_base64"] = None if value is None else base64_of(value)
    return rows


def _show(rows: list[dict[str, Any]], limit: int | None, output: Output) -> None:
    shown = rows if limit is None else rows[:limit]
    columns = list(rows[0]) if rows else []
    text = (
        table([{k: "" if v is None else v for k, v in row.items()} for row in shown], columns)
        if rows
        else "nothing"
    )
    if len(shown) < len(rows):
        text += f"\n({len(rows) - len(shown):,} more)"
    output.result({"rows": shown}, text)
