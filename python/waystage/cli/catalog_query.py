"""`waystage catalog query`: which entries, how many, how large, how old, where.

Arrives: a catalog and predicates.
Leaves: a list, totals, a histogram, or the answer to SQL.
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
@click.option("--name", metavar="PATTERN", help="Names that match, as find's -name.")
@click.option("--path", metavar="PATTERN", help="Paths below the root that match; * crosses slashes.")
@click.option("--type", "types", metavar="LETTERS", default="", help="Of f, d, l, b, c, p, s.")
@click.option(
    "--size",
    metavar="[+-]N[cwbkMGT]",
    help="Larger, smaller or as large, as find's -size: rounded up to whole units, so -1M is empty files alone. Without a unit, bytes.",
)
@click.option("--age", metavar="[+-]N[smhdw]", help="Content last changed longer ago, or more recently.")
@click.option("--uid", type=click.IntRange(0, (1 << 32) - 1), help="Owner, by number.")
@click.option("--gid", type=click.IntRange(0, (1 << 32) - 1), help="Group, by number.")
@click.option("--links", metavar="[+-]N", help="Hard links.")
@click.option(
    "--storage-target",
    type=click.IntRange(0, (1 << 32) - 1),
    help="With an object on the target of this number.",
)
@click.option("--count", "answer", flag_value="count", help="Only how many, and their bytes.")
@click.option("--histogram", type=click.Choice(["size", "age"]), help="Regular files by size or age.")
@click.option(
    "--by",
    type=click.Choice(["directory", "type", "uid", "gid", "layout", "target"]),
    help="Totals for each of these, largest first.",
)
@click.option("--top", metavar="N", type=click.IntRange(1), help="The N largest.")
@click.option(
    "--order",
    type=click.Choice(["size", "mtime"]),
    default="size",
    show_default=True,
    help="What --top goes by.",
)
@click.option("--limit", type=click.IntRange(1), help="At most so many lines.")
@click.option("--null", "-0", "null", is_flag=True, help="End paths with a NUL, as they are.")
@click.option("--sql", metavar="QUERY", help="Any query on the views entries and directories (needs DuckDB).")
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
    sql: str | None,
    output: Output,
) -> None:
    """Ask CATALOG. All predicates given must hold; without more, the paths are listed.

    Bytes are those of regular files. A file with several names counts once in a total, and once in each group of --by and
    --histogram that any of its names is in.
    """
    from waystage.catalog import Catalog
    from waystage.catalog import query as ask
    from waystage.catalog.sql import sql as ask_sql
    from waystage.catalog.store import explain

    refuse_both(null, output)
    asked = [option for option in (answer, histogram, by, top, sql) if option is not None]
    if len(asked) > 1:
        raise UserError("ask for one of --count, --histogram, --by, --top and --sql", ExitCode.USAGE)
    if not set(types) <= set("fdlbcps"):
        raise UserError(f"--type {types}: give letters of f, d, l, b, c, p, s", ExitCode.USAGE)
    catalog = Catalog(target)
    if catalog.manifest.gaps:
        output.note(
            f"{target} may miss {explain(catalog.manifest.gaps)}: 'waystage catalog refresh' mends it"
        )
    if catalog.hidden_sections:
        output.note(
            f"{target}: {catalog.hidden_sections:,} of its {len(catalog.manifest.sections):,} sections hold what"
            " the file system does not let you list: they are left out"
        )
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
        _show(_listed(found_top, output.json), limit, output)
    else:
        _list(catalog, which, limit, null, output)


def _list(catalog: Catalog, which: Filter, limit: int | None, null: bool, output: Output) -> None:
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
            paths = paths_of(piece).to_pylist()
            if null:
                print_null(paths, output)
            elif not output.quiet:
                sys.stdout.write("".join(display(path) + "\n" for path in paths))
        if left is not None:
            left -= piece.num_rows
            if left <= 0:
                break
    output.result({"entries": entries})


def _listed(found: pa.Table, exact: bool) -> list[dict[str, Any]]:
    from waystage.catalog.store import paths_of
    from waystage.display import display, named

    rows = []
    for path, row in zip(paths_of(found).to_pylist(), _plain(found), strict=True):
        seconds = row["mtime_seconds"]
        # As date(1) writes a time by its seconds: years beyond 9999 have no other form here.
        mtime = str(row["mtime"]) if seconds is None else f"@{seconds}"
        about = {"size": row["size"], "mtime": mtime, "uid": row["uid"]}
        rows.append((named(path) if exact else {"path": display(path)}) | about)
    return rows


def _plain(found: pa.Table, exact: bool = False) -> list[dict[str, Any]]:
    """Rows whose bytes are text and whose times have no more digits than Python's; with `exact`, the bytes in base 64 as well."""
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
