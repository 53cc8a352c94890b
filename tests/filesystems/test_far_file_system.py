"""`waystage://` in fsspec: a real server's directories, read in parts, copied and changed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from remote_copy_support import Site


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.serve()
    yield site
    site.close()


def access(site: Site) -> dict[str, Any]:
    return {"identity": str(site.folder / "client.key"), "server_key": site.server_key}


def url(site: Site, path: Path) -> str:
    return f"waystage://ada@127.0.0.1:{site.port}{path}"


@pytest.fixture
def far(served: Site) -> Iterator[Any]:
    system, _ = fsspec.core.url_to_fs(url(served, served.data), skip_instance_cache=True, **access(served))
    yield system
    system.close()


def test_a_file_is_read_in_parts_by_its_address(served: Site) -> None:
    data = random.Random(2).randbytes(300_000)
    (served.data / "file.bin").write_bytes(data)
    with fsspec.open(url(served, served.data / "file.bin"), block_size=10_000, **access(served)) as file:
        file.seek(123_456)
        assert file.read(5) == data[123_456:123_461]
        file.seek(-7, os.SEEK_END)
        assert file.read() == data[-7:]
    with fsspec.open(url(served, served.data / "file.bin"), **access(served)) as file:
        assert file.read() == data


def test_pandas_and_arrow_read_tables_of_the_server(served: Site, far: Any) -> None:
    folder = served.data / "tables"
    folder.mkdir()
    for number in range(3):
        pq.write_table(
            pa.table({"n": list(range(1000)), "part": [number] * 1000}), folder / f"{number}.parquet"
        )
    frame = pandas.read_parquet(url(served, folder / "1.parquet"), storage_options=access(served))
    assert frame["n"].sum() == 499_500
    found = ds.dataset(str(folder), filesystem=far).to_table(filter=ds.field("part") == 2)
    assert found.num_rows == 1000


def test_listings_have_what_fsspec_expects(served: Site, far: Any) -> None:
    folder = served.data / "listed"
    (folder / "below").mkdir(parents=True)
    (folder / "b.txt").write_text("12345")
    (folder / "odd #?%\n").touch()
    (folder / "link").symlink_to("b.txt")
    (folder / "below/deep.txt").write_text("x")
    about = {os.path.basename(each["name"]): each for each in far.ls(str(folder))}
    assert sorted(about) == ["b.txt", "below", "link", "odd #?%\n"]
    assert about["b.txt"]["size"] == 5 and about["below"]["type"] == "directory"
    assert about["link"]["destination"] == "b.txt"
    assert far.modified(str(folder / "b.txt")).timestamp() == pytest.approx(
        (folder / "b.txt").stat().st_mtime
    )
    assert far.find(str(folder)) == sorted(
        str(folder / n) for n in ("b.txt", "below/deep.txt", "link", "odd #?%\n")
    )
    assert far.glob(f"{folder}/**/*.txt") == [str(folder / "b.txt"), str(folder / "below/deep.txt")]
    assert far.ls(str(folder / "b.txt"), detail=False) == [str(folder / "b.txt")]
    assert far.exists(str(folder)) and not far.exists(str(folder / "gone"))


def test_a_forked_process_makes_its_own_connection(served: Site, far: Any) -> None:
    """As workers of PyTorch's DataLoader are forked; fsspec lets go of cached file systems in them."""
    (served.data / "shared").write_bytes(b"12345")
    kept, _ = fsspec.core.url_to_fs(url(served, served.data), **access(served))
    assert [system.cat_file(str(served.data / "shared")) for system in (far, kept)] == [b"12345"] * 2
    del kept
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if far.cat_file(str(served.data / "shared"), 1, 3) == b"23" else 2
            far.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert far.cat_file(str(served.data / "shared"), 2, 4) == b"34"


def test_directories_are_changed_and_errors_are_those_of_files(served: Site, far: Any) -> None:
    base = str(served.data / "changed")
    far.makedirs(f"{base}/a/b")
    with pytest.raises(FileExistsError, match="the name is taken"):
        far.mkdir(f"{base}/a/b")
    far.makedirs(f"{base}/a/b", exist_ok=True)
    far.pipe_file(f"{base}/a/b/file", b"abc")
    assert far.cat_file(f"{base}/a/b/file", 1, 2) == b"b"
    far.mv(f"{base}/a/b", f"{base}/c")
    assert far.find(base) == [f"{base}/c/file"]
    with pytest.raises(OSError, match="not empty"):
        far.rmdir(f"{base}/c")
    with pytest.raises(FileNotFoundError):
        far.rm(f"{base}/gone", recursive=True)
    with pytest.raises(FileNotFoundError):
        far.open(f"{base}/gone")
    with pytest.raises(IsADirectoryError):
        far.rm_file(f"{base}/c")
    far.rm(base, recursive=True)
    assert not far.exists(base)
    with pytest.raises(PermissionError, match="may only be read"):
        far.mkdir(str(served.given / "new"))
    with pytest.raises(PermissionError):
        far.ls("/etc")


def test_trees_are_put_and_got_as_whole_copies(served: Site, far: Any, tmp_path: Path) -> None:
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "tree/below/file").write_text("content")
    (tmp_path / "one:two").write_text("colon")
    there = f"{served.data}/put"
    far.put(str(tmp_path / "tree"), there, recursive=True)
    far.put(str(tmp_path / "tree"), f"{there}/again/", recursive=True)
    assert far.find(there) == [f"{there}/again/tree/below/file", f"{there}/below/file"]
    far.put(str(tmp_path / "one:two"), f"{there}/one:two")
    assert (served.data / "put/one:two").read_text() == "colon"
    far.get(there, str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got/again/tree/below/file").read_text() == "content"
    far.get(f"{there}/below/file", str(tmp_path / "single/file"))
    assert (tmp_path / "single/file").read_text() == "content"


def test_a_file_is_written_as_a_whole_or_not_at_all(served: Site, far: Any) -> None:
    path = str(served.data / "whole")
    with pytest.raises(RuntimeError), far.open(path, "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert not far.exists(path)
    with far.open(path, "wb") as file:
        file.write(b"all")
        assert not far.exists(path)
    assert (served.data / "whole").read_bytes() == b"all"
    with pytest.raises(ValueError, match="as a whole"):
        far.open(path, "ab")


def test_a_file_that_changes_while_it_is_read_is_an_error(served: Site, far: Any) -> None:
    path = served.data / "changing"
    path.write_bytes(bytes(100_000))
    with far.open(str(path), block_size=1000) as file:
        file.read(10)
        path.write_bytes(bytes(100_001))
        file.seek(90_000)
        with pytest.raises(OSError, match="changed while it was read"):
            file.read(10)


def test_a_server_that_is_not_trusted_is_refused(served: Site) -> None:
    system = fsspec.filesystem(
        "waystage", host="127.0.0.1", port=served.port, username="ada", skip_instance_cache=True,
        identity=str(served.folder / "client.key"), known_hosts=str(served.folder / "none"),
    )  # fmt: skip
    with pytest.raises(PermissionError, match="trust"):
        system.ls(str(served.data))
