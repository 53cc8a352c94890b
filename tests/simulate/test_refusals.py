"""What a sweep asks for that cannot be had: one sentence with the place and the remedy, never a traceback."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from harness import Ran, ran
from waystage.experiment.problems import ExperimentError
from waystage.interconnect.graphml import parse_topology, read_topology
from waystage.patterns import Pattern, PatternError
from waystage.simulate.loading import load
from waystage.topology import TopologyError

Write = Callable[..., Path]

PATTERN = "pattern: {kind: all-to-all, ranks: 6, bytes: 1000}"


def waystage(*arguments: str | Path, before: Sequence[str] = ()) -> Ran:
    return ran([*before, sys.executable, "-m", "waystage", *arguments])


def refusal(path: Path) -> str:
    with pytest.raises(ExperimentError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "ranks", "said"),
    [
        ("all-to-all", 10_000_000, "has 10000000 ranks, and topology huge runs 4096000 at once"),
        ("all-to-all", 100_000, "all-to-all of 100,000 ranks has 9,999,900,000 pairs; at most 16,777,216"),
    ],
)
def test_a_job_of_more_pairs_than_memory_holds_is_refused_before_it_is_made(
    sweep: Write, kind: str, ranks: int, said: str
) -> None:
    change = ("small.graphml", "{kind: torus, label: huge, params: {dims: [5], slots: 819200}}")
    message = refusal(sweep(change, (PATTERN, f"pattern: {{kind: {kind}, ranks: {ranks}}}")))
    assert message.startswith("small.yaml:8: jobs.0.pattern") and said in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "greedy-max",
            "{name: joint, options: {efort: 2}}",
            "router 'joint' has no option 'efort': did you mean effort?",
        ),
        (
            "greedy-max",
            "{name: ecmp, options: {effort: 2}}",
            "router 'ecmp' has no option 'effort': it takes none",
        ),
        ("greedy-max", "{name: joint, options: {effort: -1}}", "effort: -1 is not from 0 to 100"),
        ("greedy-max", "{name: joint, options: {effort: much}}", "effort: 'much' is no number"),
        (
            "greedy-max",
            "{name: greedy-max, options: {by_capacity: 3}}",
            "by_capacity: 3 is neither true nor false",
        ),
        (
            "bytes: 1000}",
            "bytes: 1000}\n    iterations: 1000000000000000000000",
            "jobs.0.iterations: a number of 70 bits",
        ),
        ("duration: 100\n", "duration: .inf\n", "small.yaml:1: duration: inf is no number"),
    ],
)
def test_an_option_that_an_algorithm_does_not_take_is_said_with_file_and_remedy(
    sweep: Write, old: str, new: str, said: str
) -> None:
    message = refusal(sweep((old, new)))
    assert message.startswith("small.yaml:") and said in message


def test_a_folder_below_a_file_is_refused_before_anything_runs(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("kept")
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    for folder in ("afile/x", "afile/x/y", "astray/x"):
        done = waystage("run", sweep(), "--on", "sim", "--out", tmp_path / folder)
        assert done.code == 2, done.err
        assert folder.split("/")[0] in done.err and "choose another" in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert (tmp_path / "afile").read_text() == "kept"


def test_a_file_that_cannot_be_written_is_named_and_finished_runs_are_kept(
    sweep: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    limited = ["prlimit", "--fsize=1500"] if shutil.which("prlimit") else None
    if limited is None:
        pytest.skip("prlimit is not installed")
    done = waystage("run", sweep(), "--on", "sim", "--out", out, before=limited)
    assert done.code == 1
    assert f"{out}" in done.err and "File too large" in done.err and "--out" in done.err
    assert "internal error" not in done.err and "Traceback" not in done.err
    again = waystage("run", sweep(), "--on", "sim", "--out", out, "--json")
    assert again.expect().json["runs"] == 2
    assert not list(out.rglob("*.part"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_storage_is_said_with_the_file_and_what_is_kept(sweep: Write, tmp_path: Path) -> None:
    small = tmp_path / "full"
    small.mkdir()
    script = f"mount -t tmpfs -o size=24k none {small} && exec {sys.executable} -m waystage run {sweep()} --on sim --out {small}/out"
    done = ran(["unshare", "--mount", "--propagation", "private", "sh", "-c", script])
    if "unshare failed" in done.err or "mount:" in done.err:
        pytest.skip("this container may not mount")
    assert done.code == 1
    assert f"{small}/out" in done.err and "No space left on device" in done.err
    assert "finished runs are kept" in done.err and "internal error" not in done.err


def archive(path: Path, ranks: int, received: float = 1.0) -> None:
    """One of the original profiler's, in which each rank sends 1000 bytes to the next."""
    with tarfile.open(path, "w:gz") as tar:
        for rank in range(ranks):
            sent, got = [0] * ranks, [0] * ranks
            sent[(rank + 1) % ranks], got[(rank - 1) % ranks] = 1000, int(1000 * received)
            ones = [int(v > 0) for v in sent], [int(v > 0) for v in got]
            value = {"rank": rank, "n_procs": ranks, "tx_bytes": sent, "tx_messages": ones[0]}
            value |= {"rx_bytes": got, "rx_messages": ones[1], "processor_name": "n"}
            data = json.dumps(value).encode()
            info = tarfile.TarInfo(f"{rank}.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_trace_whose_receivers_counted_half_is_warned_of(sweep: Write, tmp_path: Path) -> None:
    archive(tmp_path / "half.tar.gz", 4, received=0.5)
    archive(tmp_path / "whole.tar.gz", 4)
    assert Pattern.read(tmp_path / "whole.tar.gz").differs == ""
    done = waystage("run", sweep((PATTERN, "trace: half.tar.gz")), "--on", "sim", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    warned = next(line for line in done.err.splitlines() if line.startswith("warning: "))
    for said in (
        "half.tar.gz",
        "4,000 bytes",
        "2,000",
        "by 50%",
        "from rank 0 to rank 1 (1,000 sent, 500 received)",
    ):
        assert said in warned
    assert "senders counted" in (tmp_path / "out" / "report.html").read_text()
    assert "senders counted" in waystage("pattern", "show", tmp_path / "half.tar.gz", "--no-map").out


def test_an_archive_that_unpacks_to_more_than_it_may_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path / "small.tar.gz", 40)
    monkeypatch.setattr("waystage.patterns.original.MOST_BYTES", 30_000)
    with pytest.raises(PatternError, match=r"small\.tar\.gz unpacks to more than"):
        Pattern.read(tmp_path / "small.tar.gz")


def test_a_header_that_announces_gigabytes_is_not_believed(tmp_path: Path) -> None:
    info = tarfile.TarInfo("0.json")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "pax.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(PatternError, match="header of more than 1 MiB"):
        Pattern.read(tmp_path / "pax.tar.gz")


def test_a_pattern_is_not_read_from_a_device_and_written_into_one(tmp_path: Path) -> None:
    with pytest.raises(PatternError, match="not a regular file"):
        Pattern.read("/dev/zero")
    archive(tmp_path / "a.tar.gz", 4)
    os.mkfifo(tmp_path / "out.csv")
    reader = subprocess.Popen(["cat", tmp_path / "out.csv"], stdout=subprocess.PIPE, text=True)
    done = waystage("pattern", "convert", tmp_path / "a.tar.gz", tmp_path / "out.csv")
    text, _ = reader.communicate(timeout=150)
    assert done.code == 0 and text.startswith("phase,src,dst")
    assert (tmp_path / "out.csv").is_fifo()


GRAPH = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{}</graphml>'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("<a>" * 100 + "</a>" * 100, "nested more than 64 levels"),
        ("".join(f'<key id="k{i}" attr.name="a{i}"/>' for i in range(1100)), "more than 1024 keys"),
        (
            "".join(f'<key id="k{i}"><default>1</default></key>' for i in range(40)),
            "more than 32 keys have a default",
        ),
    ],
)
def test_a_topology_file_of_more_than_any_topology_needs_is_refused(content: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        parse_topology(GRAPH.format(content).encode(), "hostile.graphml")


def test_a_topology_of_too_many_nodes_or_from_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystage.interconnect.graphml_parser.MAX_ELEMENTS", 5)
    nodes = "<graph>" + "".join(f'<node id="n{i}"/>' for i in range(6)) + "</graph>"
    with pytest.raises(TopologyError, match="more than 5 nodes and edges"):
        parse_topology(GRAPH.format(nodes).encode(), "hostile.graphml")
    with pytest.raises(TopologyError, match="not a regular file"):
        read_topology(Path("/dev/zero"))


def test_a_pattern_of_ten_thousand_ranks_needs_no_dense_matrix() -> None:
    from waystage.experiment.schema import GeneratedPattern
    from waystage.simulate.traffic import generate

    ring = generate(GeneratedPattern(kind="ring", ranks=10_000))
    assert len(ring.total) == 20_000 and np.unique(ring.total.src).size == 10_000


def test_only_failures_to_write_the_folder_are_said_to_be_that(tmp_path: Path) -> None:
    from waystage.cli.common import UserError
    from waystage.cli.folders import writing

    for error in (
        OSError(errno.ENOSPC, "full"),
        OSError(errno.ENOSPC, "full", str(tmp_path / "a")),
        PermissionError(errno.EACCES, "no", str(tmp_path / "a")),
    ):
        with pytest.raises(
            UserError, match=r"cannot be written: .*: free space or choose another directory.*; kept"
        ):
            with writing(tmp_path, "kept"):
                raise error
    for other in (
        BrokenPipeError(errno.EPIPE, "gone"),
        FileNotFoundError(errno.ENOENT, "no", "/usr/bin/mpirun"),
    ):
        with pytest.raises(type(other)), writing(tmp_path):
            raise other
