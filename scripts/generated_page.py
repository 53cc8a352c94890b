"""The command line of a script that writes a page of docs/reference.

Arrives: the page's place and its text.
Leaves: the page written, or with `--check` a comparison, as the exit status.
Must not know: what the text is made from.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write(page: Path, text: str, description: str | None) -> int:
    """Write `text` to `page`; with `--check`, return 1 where the page differs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is not current")
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"{page} is not current: run 'make docs'", file=sys.stderr)
        return 1
    return 0
