"""`waystage augment` from the command line, and the iterator that training takes."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Ran, command, ran, wait_until
from waystage._native import AugmentError, augment_image
from waystage.augment import AugmentOptions, Streamed, stream
from waystage.ranks import Rank

OPERATIONS = ("crop:12x12", "flip", "rotate:15", "color:0.3", "noise:4", "resize:16x16")


def png(width: int, height: int, seed: int) -> bytes:
    """A PNG of colours, written by hand."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(3 * width) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def pixels(data: bytes) -> Any:
    """The rows of such a PNG, with no filter undone: only what `png` writes is read."""
    width, height = struct.unpack(">II", data[16:24])
    at = data.index(b"IDAT")
    length = struct.unpack(">I", data[at - 4 : at])[0]
    raw = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + length]), np.uint8)
    return raw.reshape(height, 3 * width + 1)[:, 1:].reshape(height, width, 3)


def waystage(*arguments: str | Path, expected: int = 0, **environment: str) -> Ran:
    return ran(command("augment", *arguments), env=os.environ | environment).expect(expected)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    (root / "cats").mkdir(parents=True)
    for number in range(9):
        (root / f"cats/{number}.png").write_bytes(png(20, 16, number))
    (root / "dog.jpg").write_bytes(augment_image(png(30, 30, 77), [], encoding="jpeg"))
    (root / os.fsdecode(b"odd\n\xff.PNG")).write_bytes(png(8, 8, 5))
    (root / "labels.csv").write_text("0,cat\n")
    return root


def options(*operations: str) -> list[str]:
    return [part for operation in operations for part in ("--op", operation)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_seed_gives_the_same_bytes_with_any_threads_and_ranks(images: Path, tmp_path: Path) -> None:
    common = [*options(*OPERATIONS), "--seed", "5", "--copies", "3"]
    said = waystage(images, tmp_path / "one", *common, "--workers", "1", "--json").json
    counts = said["counts"]
    assert (counts["images"], counts["made"], counts["others"], counts["broken"]) == (11, 33, 1, 0)
    one = contents(tmp_path / "one")
    assert len(one) == 33 and "cats/3.png-2.png" in one and "dog.jpg-0.jpg" in one
    waystage(images, tmp_path / "many", *common, "--workers", "7")
    assert contents(tmp_path / "many") == one
    for rank in range(3):
        environment = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3"}
        waystage(images, tmp_path / "ranks", *common, **environment)
    assert contents(tmp_path / "ranks") == one
    waystage(images, tmp_path / "other", *common, "--seed", "6")
    other = contents(tmp_path / "other")
    assert other.keys() == one.keys() and all(other[name] != one[name] for name in one)


def test_a_catalog_gives_the_same(images: Path, tmp_path: Path) -> None:
    subprocess.run(command("catalog", "build", images, tmp_path / "catalog", "-q"), check=True)
    waystage(images, tmp_path / "tree", *options("flip", "noise:9"))
    waystage(tmp_path / "catalog", tmp_path / "catalogued", *options("flip", "noise:9"))
    assert contents(tmp_path / "catalogued") == contents(tmp_path / "tree")


def test_a_shard_holds_what_a_tree_would_in_order_of_paths(images: Path, tmp_path: Path) -> None:
    common = [*options(*OPERATIONS), "--copies", "2"]
    waystage(images, tmp_path / "tree", *common)
    shard = tmp_path / "out.tar"
    waystage(images, shard, *common, "--workers", "5")
    with tarfile.open(shard, errors="surrogateescape") as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        names = [os.fsencode(name) for name in tar.getnames()]
    assert held == contents(tmp_path / "tree")
    assert names == sorted(names)
    before = shard.read_bytes()
    assert "was kept" in waystage(images, shard, *common).out
    waystage(images, shard, *common, "--workers", "1", "--overwrite")
    assert shard.read_bytes() == before
    waystage(images, shard, *common, "--rank", "1", "--ranks", "2")
    assert (tmp_path / "out-00001-of-00002.tar").exists()


def test_existing_images_are_kept(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    waystage(images, out, *options("noise:9"))
    whole = contents(out)
    (out / "dog.jpg-0.jpg").unlink()
    (out / "cats/1.png-0.png").write_bytes(b"mine")
    said = waystage(images, out, *options("noise:9"), "--json").json["counts"]
    assert (said["made"], said["kept"]) == (1, 10)
    assert (out / "cats/1.png-0.png").read_bytes() == b"mine"
    waystage(images, out, *options("noise:9"), "--overwrite")
    assert contents(out) == whole


def test_broken_images_are_counted_and_told_and_end_nothing(images: Path, tmp_path: Path) -> None:
    whole = (images / "cats/0.png").read_bytes()
    (images / "cut.png").write_bytes(whole[:100])
    (images / "text.jpg").write_text("no image")
    (images / "empty.png").write_bytes(b"")
    (images / "bomb.png").write_bytes(png(300, 300, 1))
    (images / "loop.png").symlink_to("loop.png")
    os.mkfifo(images / "pipe.png")
    said = waystage(images, tmp_path / "out", "--max-pixels", "10000", "--json", expected=8).json
    counts = said["counts"]
    assert (counts["made"], counts["broken"], counts["others"]) == (11, 4, 1)
    told = {error["path"]: error["error"] for error in said["errors"]}
    assert told.keys() == {"cut.png", "text.jpg", "empty.png", "bomb.png"}
    assert told["text.jpg"] == "it is neither PNG nor JPEG"
    assert told["bomb.png"].startswith("300 x 300 pixels are more than the limit")
    assert "bomb.png: " in waystage(images, tmp_path / "again", "--max-pixels", "10000", expected=8).err


def test_operations_do_what_they_say(images: Path, tmp_path: Path) -> None:
    before = pixels((images / "cats/4.png").read_bytes())
    got = {made.path: made.image for made in stream(images, AugmentOptions(("flip:1",), threads=2))}
    assert np.array_equal(got[b"cats/4.png"], before[:, ::-1])
    got = {made.path: made.image for made in stream(images, AugmentOptions(("flip-vertical:1",), threads=2))}
    assert np.array_equal(got[b"cats/4.png"], before[::-1])
    got = {made.path: made.image for made in stream(images, AugmentOptions(("resize:5x7",), threads=2))}
    assert all(image.shape[:2] == (7, 5) for image in got.values() if isinstance(image, np.ndarray))


def test_a_stream_gives_what_is_written(images: Path, tmp_path: Path) -> None:
    waystage(images, tmp_path / "out", *options(*OPERATIONS), "--seed", "3", "--copies", "2")
    chosen = AugmentOptions(OPERATIONS, seed=3, copies=2, threads=3)
    files = list(stream(images, chosen, deliver="files"))
    assert [(made.path, made.copy) for made in files] == sorted((made.path, made.copy) for made in files)
    assert sorted(made.image for made in files) == sorted(contents(tmp_path / "out").values())  # type: ignore[type-var]
    arrays = list(stream(images, chosen))
    assert [(a.path, a.copy) for a in arrays] == [(f.path, f.copy) for f in files]
    assert all(isinstance(made.image, np.ndarray) and made.image.shape == (16, 16, 3) for made in arrays)


def test_epochs_differ_and_shuffling_keeps_every_image(images: Path) -> None:
    chosen = AugmentOptions(("noise:20",), seed=1, threads=4)

    def epoch(number: int, *, shuffle: bool = True, rank: Rank | None = None) -> list[Streamed]:
        return list(stream(images, chosen, epoch=number, shuffle=shuffle, rank=rank))

    def equal(a: list[Streamed], b: list[Streamed]) -> bool:
        return [m.path for m in a] == [m.path for m in b] and all(
            np.array_equal(x.image, y.image) for x, y in zip(a, b, strict=True)
        )

    assert equal(epoch(0), epoch(0))
    assert [m.path for m in epoch(0)] != [m.path for m in epoch(1)]
    first, second = ({m.path: m.image for m in epoch(number)} for number in (0, 1))
    assert first.keys() == second.keys() and len(first) == 11
    assert not any(np.array_equal(first[path], second[path]) for path in first)
    shares = [m.path for rank in range(3) for m in epoch(0, rank=Rank(rank, 3))]
    assert sorted(shares) == sorted(first)


def test_an_iterator_that_is_left_ends_its_threads(images: Path) -> None:
    # More images than threads make ahead of their turn, so that they wait here and have not ended by themselves.
    for number in range(40):
        (images / f"more-{number}.png").write_bytes((images / "cats/0.png").read_bytes())

    def working() -> int:
        return sum(name.startswith("augment-") for name in thread_names())

    iterator = stream(images, AugmentOptions(threads=3))
    next(iterator)
    # A thread has its name a moment after it began, and is listed for one after it was waited for.
    wait_until(lambda: working() == 3)
    iterator.close()  # type: ignore[attr-defined]
    del iterator
    gc.collect()
    wait_until(lambda: working() == 0)


def thread_names() -> list[str]:
    """Of this process's threads, those the interpreter does not know among them."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names


def test_broken_images_of_a_stream_are_reported_at_its_end(images: Path) -> None:
    (images / "cut.png").write_bytes((images / "cats/0.png").read_bytes()[:90])
    errors: list[tuple[bytes, str]] = []
    assert len(list(stream(images, AugmentOptions(), errors=errors))) == 11
    assert [path for path, _ in errors] == [b"cut.png"]


def test_usage_errors_say_what_to_do(images: Path, tmp_path: Path) -> None:
    said = waystage(images, tmp_path / "out", "--op", "spin", expected=2).err
    assert "'spin'" in said.replace('"', "'") and "rotate:DEGREES" in said
    assert "cannot be read" in waystage(tmp_path / "absent", tmp_path / "out", expected=3).err
    (tmp_path / "folder.tar").mkdir()
    assert "is a directory" in waystage(images, tmp_path / "folder.tar", expected=2).err
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in waystage(images, tmp_path / "file/out", expected=1).err
    dry = waystage(images, tmp_path / "dry", "--dry-run", "-x", "*.csv", "--json").json
    assert (dry["files"], dry["excluded"]) == (11, 1)
    assert not (tmp_path / "dry").exists()


def test_one_image_in_memory() -> None:
    image = png(10, 10, 3)
    assert augment_image(image, ["noise:5"], seed=1) != augment_image(image, ["noise:5"], seed=2)
    with pytest.raises(AugmentError, match="neither PNG nor JPEG"):
        augment_image(b"text", [])
    with pytest.raises(ValueError, match="rotate:DEGREES"):
        augment_image(image, ["spin"])
