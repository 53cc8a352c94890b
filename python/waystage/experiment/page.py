"""What all reports share: one HTML page that loads nothing from outside.

Arrives: texts, rows of a table, parts of a page.
Leaves: HTML, and files that appear complete or not at all.
Must not know: what is reported.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waystage.outputs import write_whole

REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"

MOST_FAILURES = 10
"""Failures on a page; all are in result.json."""

_STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ddd }
.wide { overflow-x: auto } .wide svg { min-width: 34rem }
.verdict { font-size: 1.1rem; border-left: 4px solid #2a9d8f; padding: .5rem 1rem; background: #f2f7f6 }
.verdict.bad { border-color: #d0402b; background: #fde8e4 }
pre { overflow-x: auto; background: #f4f5f7; padding: .5rem .8rem }
@media (min-width: 45rem) { td:nth-child(3), td:nth-child(4), td:nth-child(5) { white-space: nowrap } }
.invalid { background: #fde8e4; border-left: 4px solid #d0402b; padding: .6rem 1rem }
.note { color: #555 } svg { max-width: 100%; height: auto } code { font-size: .92em }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The document; empty parts are left out."""
    head = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}: results</title>"
    )
    body = [head, f"<style>{_STYLE}</style>", f"<h1>{text(title)}</h1>", *parts]
    return "\n".join(part for part in body if part) + "\n</html>\n"


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows by column name, with a head."""
    head = "".join(f"<th>{text(name)}</th>" for name in columns)
    lines = ["<tr>" + "".join(f"<td>{text(str(row[n]))}</td>" for n in columns) + "</tr>" for row in rows]
    return f"<div class=wide><table><tr>{head}</tr>{''.join(lines)}</table></div>"


def facts(values: Mapping[str, Any]) -> str:
    """A table of two columns, name and value, without a head."""
    cells = "".join(f"<tr><td>{text(k)}</td><td>{text(str(v))}</td></tr>" for k, v in values.items())
    return f"<table>{cells}</table>"


def text(value: str) -> str:
    """Text as it may stand in HTML, also inside an attribute."""
    return html.escape(value, quote=True)


def alert(value: str, heading: str = "") -> str:
    """What the reader should see before any figure."""
    bold = f"<b>{text(heading)}:</b> " if heading else ""
    return f"<p class=invalid>{bold}{text(value)}</p>"


def alerts(what: str, failures: Sequence[str]) -> list[str]:
    """The first failures, and how many more there are."""
    more = [f"{len(failures) - MOST_FAILURES} more {what} failed; see result.json."]
    return [alert(failure) for failure in [*failures[:MOST_FAILURES], *more[: len(failures) > MOST_FAILURES]]]


def note(value: str) -> str:
    """A remark in small print."""
    return f"<p class=note>{text(value)}</p>"


def section(heading: str, *parts: str) -> str:
    """Parts under a heading; a drawing is scrolled where the page is narrow."""
    shown = (f"<div class=wide>{part}</div>" if part.startswith("<svg") else part for part in parts)
    return f"<h2>{text(heading)}</h2>" + "\n".join(shown)


def verdict(value: str, *, good: bool) -> str:
    """What the whole page says, in one sentence."""
    return f"<p class='verdict{'' if good else ' bad'}'>{text(value)}</p>"


def command(line: str) -> str:
    """A command to copy."""
    return f"<pre><code>{text(line)}</code></pre>"


def write_report(folder: Path, content: str, plots: Mapping[str, str]) -> Path:
    """Write `report.html`, and each SVG of `plots` by name as a file."""
    for name, drawing in plots.items():
        (folder / PLOTS_FOLDER).mkdir(exist_ok=True)
        head = '<?xml version="1.0" encoding="utf-8"?>\n'
        write_whole(folder / PLOTS_FOLDER / f"{name}.svg", (head + drawing).encode())
    path = folder / REPORT_FILE
    write_whole(path, content.encode())
    return path
