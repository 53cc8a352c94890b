"""What all reports share: one HTML page that needs nothing from outside.

Arrives: texts, rows of a table, parts of a page.
Leaves: HTML, and files that appear whole or not at all.
Must not know: what is reported.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ddd }
td:nth-child(3), td:nth-child(4), td:nth-child(5) { white-space: nowrap }
.invalid { background: #fde8e4; border-left: 4px solid #d0402b; padding: .6rem 1rem }
.note { color: #555 } svg { max-width: 100%; height: auto } code { font-size: .92em }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The whole document; empty parts are left out."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{text(title)}: results</title>"
    body = [head, f"<style>{_STYLE}</style>", f"<h1>{text(title)}</h1>", *parts]
    return "\n".join(part for part in body if part) + "\n</html>\n"


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows by column name, with a head."""
    head = "".join(f"<th>{text(name)}</th>" for name in columns)
    lines = ["<tr>" + "".join(f"<td>{text(str(row[n]))}</td>" for n in columns) + "</tr>" for row in rows]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def facts(values: Mapping[str, Any]) -> str:
    """A table of two columns, name and value, without a head."""
    cells = "".join(f"<tr><td>{text(k)}</td><td>{text(str(v))}</td></tr>" for k, v in values.items())
    return f"<table>{cells}</table>"


def text(value: str) -> str:
    """Text as it may stand in HTML, also inside an attribute."""
    return html.escape(value, quote=True)


def write(path: Path, content: str) -> None:
    """Nobody ever reads half a report."""
    part = path.with_suffix(".part")
    try:
        part.write_text(content, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
