"""`waystage copy --compress`: fewer bytes cross the path, the same files arrive."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from harness import command, wait_until
from remote_copy_support import Middlebox, Site

BOTH = pytest.mark.parametrize("push", [True, False], ids=["to the server", "from the server"])

TEXT = b"".join(b"step %d residual %.6e\n" % (number, 1 / (number + 1)) for number in range(150_000))


class Counting(Middlebox):
    """Counts what it carries over TCP."""

    carried = 0

    def _carry(self, near, far):  # type: ignore[no-untyped-def]
        box, lock = self, threading.Lock()

        class Counted:
            """A socket whose bytes count."""

            def __init__(self, inner):  # type: ignore[no-untyped-def]
                self.inner = inner

            def __getattr__(self, name: str) -> object:
                return getattr(self.inner, name)

            def __enter__(self) -> object:
                return self

            def __exit__(self, *_: object) -> None:
                self.inner.close()

            def sendall(self, data: bytes) -> None:
                with lock:
                    box.carried += len(data)
                self.inner.sendall(data)

        super()._carry(Counted(near), Counted(far))


def carried(site: Site, push: bool, name: str, *words: object) -> int:
    """Bytes over the path for the file `name`, over TCP alone; the file is compared."""
    here, there = site.folder / name, site.data / name
    source, destination = (here, there) if push else (there, here)
    far = f"ada@127.0.0.1:{there}"
    with Counting(site.port) as box:
        ends = (source, far) if push else (far, destination)
        ran = site.copy(*ends, "--udp-wait", 0, *words, port=box.port).expect()
        assert ran.json["counts"]["bytes"] == source.stat().st_size, ran
        assert destination.read_bytes() == source.read_bytes()
        destination.unlink()
        return box.carried


@BOTH
def test_text_crosses_in_fewer_bytes_and_noise_in_no_more(site: Site, push: bool) -> None:
    top = site.folder if push else site.data
    (top / "text").write_bytes(TEXT)
    (top / "noise").write_bytes(os.urandom(8 << 20))
    site.serve()
    plain, short = carried(site, push, "text"), carried(site, push, "text", "--compress")
    assert plain > len(TEXT) > 1.5 * short, (plain, short)
    plain, same = carried(site, push, "noise"), carried(site, push, "noise", "--compress")
    assert abs(plain - same) < 0.02 * plain, (plain, same)


@BOTH
def test_a_compressed_tree_is_verified_and_resumed(site: Site, push: bool) -> None:
    here, there = site.folder / "here", site.data / "there"
    source, destination = (here, there) if push else (there, here)
    files = {f"dir{number % 5}/{number}": TEXT[number * 100 : number * 1500] for number in range(1, 100)}
    files |= {"large": TEXT * 8, "noise": os.urandom(5 << 20)}
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    with (source / "holes").open("wb") as sparse:
        sparse.truncate(40 << 20)
        sparse.seek(20 << 20)
        sparse.write(TEXT)
    far = f"ada@127.0.0.1:{there}"
    ends = (here, far) if push else (far, here)
    site.serve()
    process = site.begin(*ends, "--compress", "--verify", "--bandwidth-limit", "4M")
    wait_until(lambda: process.poll() is not None or any(destination.glob("dir*/*")))
    process.kill()
    process.communicate()
    site.copy(*ends, "--compress", "--verify").expect()
    assert all((destination / name).read_bytes() == content for name, content in files.items())
    assert (destination / "holes").read_bytes() == (source / "holes").read_bytes()
    assert (destination / "holes").stat().st_blocks * 512 < 30 << 20


def test_compression_is_for_copies_between_hosts(site: Site, tmp_path: Path) -> None:
    ran = site.ran(command("copy", tmp_path, site.folder / "copy", "--compress"))
    assert ran.code == 2 and "--compress" in ran.out + ran.err, ran
