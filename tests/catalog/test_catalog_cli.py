"""`waystage catalog` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import WAIT_S, command
from waystage.catalog import Catalog, DuckdbMissing
from waystage.catalog.sql import sql

RAW = b"odd\n\xff"


def waystage(*arguments: str | Path, expected: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        command("catalog", *arguments),
        capture_output=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == expected, done.stderr.decode()
    return done


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    for number in range(5):
        (root / "a" / f"f{number}").write_bytes(b"x" * 1000 * number)
    (root / "a" / os.fsdecode(RAW)).write_bytes(b"")
    return root


def test_no_command_imports_pandas(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a third of a second, and pyarrow would import it for its first array."""
    (tmp_path / "modules" / "pandas").mkdir(parents=True)
    (tmp_path / "modules" / "pandas" / "__init__.py").write_text(
        "raise RuntimeError('pandas was imported')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    waystage("build", tree, tmp_path / "catalog")
    waystage("query", tmp_path / "catalog", "--type", "f")
    waystage("verify", tmp_path / "catalog")


def test_from_building_to_exporting(tree: Path, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    built = json.loads(waystage("build", tree, catalog, "--json").stdout)
    assert (built["entries"], built["errors"]) == (7, [])
    assert waystage("verify", catalog).stdout.decode() == "0 added, 0 removed, 0 changed, 7 the same\n"

    (tree / "a/f4").unlink()
    changed = json.loads(waystage("verify", catalog, "--json", expected=1).stdout)
    assert changed["removed"] == ["a/f4"]
    waystage("refresh", catalog, "--quiet")
    assert waystage("verify", catalog, "--quiet").stdout == b""

    listed = waystage("query", catalog, "--type", "f", "-0").stdout.split(b"\0")[:-1]
    assert set(listed) == {b"a/" + RAW, *(f"a/f{n}".encode() for n in range(4))}
    absolute = waystage("query", catalog, "--type", "f", "-0", "--absolute").stdout.split(b"\0")[:-1]
    assert absolute == [os.path.join(os.fsencode(tree), path) for path in listed]
    assert b"without --json" in waystage("query", catalog, "--absolute", "--count", expected=2).stderr
    assert b"a/odd\\n\\xff\n" in waystage("query", catalog, "--name", "odd*").stdout
    counted = json.loads(
        waystage("query", catalog, "--size", "+1000", "--type", "f", "--count", "--json").stdout
    )
    assert (counted["entries"], counted["bytes"]) == (2, 5000)
    first = json.loads(waystage("query", catalog, "--top", "1", "--type", "f", "--json").stdout)["rows"]
    assert first[0]["path"] == "a/f3"
    assert b"a " in waystage("query", catalog, "--by", "directory", "--type", "f").stdout

    assert waystage("export", catalog).stdout.startswith(b"path,path_base64,type,size,")
    said = waystage("export", catalog, "--format", "jsonl", "-o", tmp_path / "lines", "--json").stdout
    assert json.loads(said)["entries"] == 6
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert {line["path"] for line in lines} == {"a", "a/odd\\n\\xff", *(f"a/f{n}" for n in range(4))}
    assert (tmp_path / "lines").stat().st_mode & 0o777 == 0o600


def test_failures_have_a_sentence_and_a_status(tree: Path, tmp_path: Path) -> None:
    assert b"no catalog" in waystage("query", tree, expected=3).stderr
    assert b"cannot be read" in waystage("build", tree / "absent", tmp_path / "c", expected=3).stderr
    waystage("build", tree, tmp_path / "c", "-q")
    assert b"one of" in waystage("query", tmp_path / "c", "--count", "--top", "1", expected=2).stderr
    assert b"not a size" in waystage("query", tmp_path / "c", "--size", "big", expected=3).stderr
    assert json.loads(waystage("query", tree, "--json", expected=3).stdout)["exit_code"] == 3
    assert b"--output" in waystage("export", tmp_path / "c", "--quiet", expected=2).stderr


def test_ctrl_c_leaves_what_the_same_command_goes_on_with(tmp_path: Path) -> None:
    tree, catalog = tmp_path / "tree", tmp_path / "catalog"
    for folder in range(300):
        (tree / str(folder)).mkdir(parents=True)
        for file in range(20):
            (tree / str(folder) / str(file)).touch()
    # The walk waits for the consumer of its batches, so that the signal comes while it is in progress.
    code = (
        "import sys, time; from waystage.catalog import recording; from waystage.cli.main import main\n"
        "add = recording.Recorder.add\n"
        "def slow(self, batch): add(self, batch); print('added', flush=True); time.sleep(90)\n"
        "recording.Recorder.add = slow\n"
        f"main(['catalog', 'build', {str(tree)!r}, {str(catalog)!r}])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"added\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert b"interrupted" in said
    assert not catalog.exists()
    assert (tmp_path / "catalog.partial/_journal.json").exists()
    built = json.loads(waystage("build", tree, catalog, "--json").stdout)
    assert built["resumed"]
    assert built["entries"] == 6300
    assert sorted(p.name for p in tmp_path.iterdir()) == ["catalog", "tree"]


def test_an_unreadable_directory_is_reported_and_the_rest_recorded(tree: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        (tree / "closed").mkdir(mode=0)
    else:
        pytest.skip("root may read every directory")
    built = json.loads(waystage("build", tree, tmp_path / "c", "--json").stdout)
    assert built["errors"] == [
        {"path": "closed", "path_base64": None, "error": "open directory: Permission denied (os error 13)"}
    ]
    assert built["entries"] == 8


def test_sql_reads_the_catalog_and_nothing_else(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    catalog = tmp_path / "catalog"
    waystage("build", tree, catalog, "-q")
    query = "SELECT type, count(*) AS n, sum(size) AS bytes FROM entries GROUP BY type ORDER BY n DESC"
    rows = json.loads(waystage("query", catalog, "--sql", query, "--json").stdout)["rows"]
    assert rows[0] == {"type": "f", "n": 6, "bytes": 10000}
    for outside in (f"COPY entries TO '{tmp_path}/x.csv'", "SELECT * FROM read_text('/etc/passwd')", "SELEC"):
        assert b"SQL: " in waystage("query", catalog, "--sql", outside, expected=3).stderr
    assert not (tmp_path / "x.csv").exists()


def test_without_duckdb_sql_says_how_to_get_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waystage("build", tree, tmp_path / "catalog", "-q")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DuckdbMissing, match="pip install duckdb"):
        sql(Catalog(tmp_path / "catalog"), "SELECT 1")
