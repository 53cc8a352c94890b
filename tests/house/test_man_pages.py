"""The man pages: one for each command, with all its options, and such that roff has nothing to say."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WRITER = runpy.run_path(str(REPOSITORY / "scripts/write_man_pages.py"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    written: list[Path] = WRITER["write"](tmp_path_factory.mktemp("man"))
    return written


def test_each_command_has_a_page_with_its_options(pages: list[Path]) -> None:
    from waystage.cli.main import SUBCOMMANDS

    written = {path.name for path in pages}
    assert {f"waystage-{name}.1" for name in SUBCOMMANDS} | {
        "waystage.1",
        "waystage-catalog-build.1",
    } <= written
    text = (pages[0].parent / "waystage-copy.1").read_text(encoding="utf-8")
    for part in (
        ".SH NAME",
        ".SH SYNOPSIS",
        "\\fB\\-\\-log\\-file FILE\\fR",
        "waystage copy /data/run42 /scratch/run42",
    ):
        assert part in text, part


def test_roff_formats_the_pages_without_a_warning(pages: list[Path]) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    ran = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-z", *pages],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_no_text_is_taken_for_a_request_of_roff() -> None:
    assert WRITER["_text"](".so /etc/passwd") == "\\&.so /etc/passwd"
    assert WRITER["_text"]("'br\n.so a\\b") == "\\&'br .so a\\eb"
