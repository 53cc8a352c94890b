"""Whole sweeps through the command line: results, resuming, interruption, algorithms that misbehave."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness import WAIT_S, Ran, ran, wait_until
from simulate_support import PFSIM, REPOSITORY
from waystage.interconnect.graphml import read_topology

Write = Callable[..., Path]

CG = """\
duration: 1000.0
topology: {topology}
output: output/milk-cg
algorithms:
  scheduler:
    - pfsim.scheduler.FCFSScheduler
  host_selector:
    - pfsim.host_selector.LinearHostSelector
  process_mapper:
    - pfsim.process_mapper.LinearProcessMapper
    - pfsim.process_mapper.CyclicProcessMapper
  router:
    - pfsim.router.DmodKRouter
    - pfsim.router.GreedyRouter2
jobs:
  - submit:
      distribution: pfsim.math.ExponentialDistribution
      params:
        lambd: 0.1
    duration:
      distribution: pfsim.math.ExponentialDistribution
      params:
        lambd: 0.2
    trace: {trace}
"""


def waystage(*arguments: str | Path, command: str = "run", path: Path | None = None) -> Ran:
    """`waystage run ... --on sim`, or another command without a world."""
    world = ("--on", "sim") if command == "run" and "lab" not in arguments else ()
    env = {**os.environ, "PYTHONPATH": str(path or "")}
    return ran([sys.executable, "-m", "waystage", command, *arguments, *world], env=env)


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def digests(folder: Path) -> dict[str, str]:
    """Of every file but the kept runs."""
    files = [p for p in folder.rglob("*") if p.is_file() and "runs" not in p.relative_to(folder).parts]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.skipif(not PFSIM.is_dir(), reason="PFSim's topology and trace are not on this machine")
def test_the_published_maxima_of_cg_come_out_of_the_originals_own_file(tmp_path: Path) -> None:
    file = tmp_path / "cg.yml"
    text = CG.format(topology=PFSIM / "milk.graphml", trace=PFSIM / "cg-c-128.tar.gz")
    file.write_text(text, encoding="utf-8")
    done = waystage(file, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    maxima = [run["metrics"]["max_load_bytes"] for run in result_of(tmp_path / "out")["runs"]]
    assert maxima[0] == 5_928_262_656
    assert [round(m / maxima[0], 9) for m in maxima] == [1, 0.500022154, 1.975045414, 1.750011088]
    shown = [line.split()[-7] for line in done.out.splitlines()[1:5]]
    assert shown == ["1.0000", "0.5000", "1.9750", "1.7500"]


def test_a_run_leaves_tables_graphml_plots_and_a_report(sweep: Write, tmp_path: Path) -> None:
    done = waystage(sweep(), "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    answer = done.json
    assert (answer["planned"], answer["runs"], answer["interrupted"]) == (2, 2, False)
    out = tmp_path / "out"
    runs = result_of(out)["runs"]
    links = pq.read_table(out / "links.parquet").to_pylist()
    for run in runs:
        mine = [row for row in links if row["run"] == run["number"] and row["between_switches"]]
        assert max(row["peak_bytes"] for row in mine) == run["metrics"]["max_load_bytes"] > 0
    jobs = pq.read_table(out / "jobs.parquet").to_pylist()
    # A job every ten seconds for fifteen seconds, six of eight hosts each: one runs at a time.
    first = [job for job in jobs if job["run"] == 1]
    assert [job["started_s"] for job in first][:4] == [10, 25, 40, 55]
    assert {len(job["hosts"]) for job in first if job["status"] == "done"} == {6}
    again = read_topology(out / "graphml" / "run-1.graphml")
    assert (len(again.hosts), len(again.links)) == (8, 12)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "d-mod-k" in page and page.count("<svg") >= 3
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(?!#|data:)\w""", page), (
        "something is loaded from outside the page"
    )
    assert sorted(p.name for p in (out / "plots").iterdir())[0] == "largest-loads.svg"


def test_the_same_seed_gives_the_same_bytes_however_many_processes(sweep: Write, tmp_path: Path) -> None:
    file = sweep(
        ("[d-mod-k, greedy-max]", "[random, ecmp]\n  host_selector: random\n  process_mapper: random"),
        ("fixed, params: {value: 10}", "exponential, params: {mean: 10}"),
        ("duration: 100\n", "duration: 100\nseeds: [3, 4]\n"),
    )
    for out, processes in (("a", "1"), ("b", "2")):
        assert waystage(file, "--out", tmp_path / out, "--processes", processes).code == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    runs = result_of(tmp_path / "a")["runs"]
    assert runs[0]["metrics"] != runs[1]["metrics"], "two seeds gave the same run"


def test_what_has_finished_is_not_made_again(sweep: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert waystage(sweep(), "--out", out).code == 0
    made = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*.run")}
    assert len(made) == 2
    before = digests(out)
    victim = next(iter(made))
    victim.write_bytes(b"broken")
    assert waystage(sweep(), "--out", out).code == 0
    assert digests(out) == before
    same = [p for p, at in made.items() if p.stat().st_mtime_ns == at]
    assert [p for p in made if p not in same] == [victim]
    # Another duration is another run.
    assert waystage(sweep(("duration: 100", "duration: 90")), "--out", out).code == 0
    assert len(list((out / "runs").rglob("*.run"))) == 4


def test_a_folder_with_other_things_is_left_alone(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    done = waystage(sweep(), "--out", tmp_path / "out")
    assert done.code == 2 and "not empty" in done.err


MISBEHAVED = """\
import time

class Raises:
    def paths(self, src, dst, amounts, loads, cluster):
        raise KeyError("lost my way")

class Loops:
    def paths(self, src, dst, amounts, loads, cluster):
        while True:
            pass

class Crashes:
    def paths(self, src, dst, amounts, loads, cluster):
        import os
        os.kill(os.getpid(), 9)

class Detours:
    def paths(self, src, dst, amounts, loads, cluster):
        return [[0] for _ in src]

class First:
    '''The first shortest way, link after link.'''
    def paths(self, src, dst, amounts, loads, cluster):
        print("this must not disturb other runs")
        found = []
        for a, b in zip(src.tolist(), dst.tolist()):
            path, at = [], a
            near = cluster.switch_distances(cluster.edge_of[b])
            for _ in range(10):
                if at == b:
                    break
                out = [l for l in range(len(cluster.links_from)) if cluster.links_from[l] == at]
                step = min(out, key=lambda l: (cluster.links_to[l] != b, near[cluster.links_to[l]], l))
                path.append(step)
                at = int(cluster.links_to[step])
            found.append(path)
        return found
"""


def test_an_algorithm_that_loops_ends_its_own_run_only(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISBEHAVED)
    # The other run takes a hundredth of this: on a busy machine it is not ended too.
    limit = ("duration: 100\n", "duration: 100\nlimit_s: 10\n")
    file = sweep(("[d-mod-k, greedy-max]", "[mine:Loops, d-mod-k]"), limit)
    done = waystage(file, "--out", tmp_path / "out", path=tmp_path)
    assert done.code == 1, done.err
    runs = result_of(tmp_path / "out")["runs"]
    assert [run.get("status", "done") for run in runs] == ["failed", "done"]
    assert "was ended after 10 s" in runs[0]["cause"]


def test_an_algorithm_that_raises_or_crashes_ends_its_own_run_only(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISBEHAVED)
    names = "[mine:Raises, mine:Crashes, mine:Detours, mine:First, d-mod-k]"
    file = sweep(("[d-mod-k, greedy-max]", names))
    done = waystage(file, "--out", tmp_path / "out", path=tmp_path)
    assert done.code == 1, done.err
    runs = result_of(tmp_path / "out")["runs"]
    assert [run.get("status", "done") for run in runs] == ["failed"] * 3 + ["done"] * 2
    assert runs[0]["cause"] == "the router failed: KeyError: 'lost my way' (mine.py:5)"
    assert "killed by SIGKILL" in runs[1]["cause"]
    assert runs[2]["cause"].startswith("the router's path from c1 to c2 is none: ")
    assert runs[3]["metrics"]["max_load_bytes"] > 0
    assert "run 1 failed: the router failed" in done.out
    silent = waystage(file, "--out", tmp_path / "out", "--quiet", path=tmp_path)
    assert (silent.code, silent.out) == (1, "")
    assert "3 of 5 runs failed, the first because the router failed: KeyError" in silent.err
    # Once fixed, only what failed is made again.
    (tmp_path / "mine.py").write_text(
        MISBEHAVED.replace(
            'raise KeyError("lost my way")', "return First().paths(src, dst, amounts, loads, cluster)"
        )
    )
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("*.run")}
    file.write_text(file.read_text().replace(names, "[mine:Raises, d-mod-k]"))
    assert waystage(file, "--out", tmp_path / "out", path=tmp_path).code == 0
    assert all(p.stat().st_mtime_ns == at for p, at in kept.items())


def test_ctrl_c_keeps_what_has_finished_and_leaves_no_process(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISBEHAVED)
    file = sweep(("[d-mod-k, greedy-max]", "[d-mod-k, mine:Loops]"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "waystage", "run", str(file), "--on", "sim", "--out", str(out)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts a test in the background has it ignore Ctrl-C; the program must not inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        wait_until(lambda: list(out.glob("runs/*/*.run")), what="the first run")
        workers = children(process.pid)
        assert workers, "no run is in progress"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "1 of 2 runs" in stdout and "makes the missing runs" in stderr
    assert result_of(out)["planned"] == 2 and len(result_of(out)["runs"]) == 1
    assert "Interrupted" in (out / "report.html").read_text(encoding="utf-8")
    assert [pid for pid in workers if alive(pid)] == []


def test_workers_end_when_their_parent_is_killed(sweep: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MISBEHAVED)
    file = sweep(("[d-mod-k, greedy-max]", "[d-mod-k, mine:Loops]"))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "waystage", "run", str(file), "--on", "sim", "--quiet", "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    try:
        wait_until(lambda: list(out.glob("runs/*/*.run")), what="the first run")
        workers = children(process.pid)
    finally:
        process.kill()
        process.wait()
    assert workers
    wait_until(lambda: not any(alive(pid) for pid in workers), what="the end of the workers")


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(word) for word in text.split()]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_million_runs_are_made_only_with_the_users_agreement(sweep: Write, tmp_path: Path) -> None:
    def ten(name: str) -> str:
        return "[" + ", ".join(f"{{name: {name}, label: {name}-{i}}}" for i in range(10)) + "]"

    lists = f"{ten('ecmp')}\n  scheduler: {ten('fcfs')}\n  host_selector: {ten('linear')}\n"
    lists += f"  process_mapper: {ten('block')}\nseeds: {list(range(100))}"
    done = waystage(sweep(("[d-mod-k, greedy-max]", lists)), "--out", tmp_path / "out")
    assert done.code == 2
    product = "10 schedulers x 10 host selectors x 10 process mappers x 10 routers x 100 seeds"
    assert f"is 1,000,000 runs ({product})" in done.err and "--yes" in done.err
    assert not (tmp_path / "out").exists()


def test_time_mode_says_when_jobs_end(sweep: Write, tmp_path: Path) -> None:
    # Links of 100 Mbit/s. Four hosts a leaf; block mapping puts ranks 0 to 3 on one leaf and 4, 5 on the other. Each of
    # the first four sends 2 x 1 MB across, so 8 MB cross two uplinks of 12.5 MB/s; no host carries more than 5 MB.
    file = sweep(
        ("duration: 100\n", "duration: 100\nmode: time\n"),
        ("bytes: 1000}", "bytes: 1000000}\n    iterations: 3\n    compute_s: 2"),
        ("[d-mod-k, greedy-max]", "greedy-max"),
    )
    assert waystage(file, "--out", tmp_path / "out").code == 0
    jobs = pq.read_table(tmp_path / "out" / "jobs.parquet").to_pylist()
    lengths = {round(j["ended_s"] - j["started_s"], 6) for j in jobs if j["status"] == "done"}
    assert len(lengths) == 1
    assert 3 * (2 + 0.4) <= lengths.pop() <= 3 * (2 + 0.8)
    run = result_of(tmp_path / "out")["runs"][0]["metrics"]
    # By the end of the run every job that ended had sent three times 8 MB each way over the uplinks.
    ended = sum(j["status"] == "done" for j in jobs)
    assert run["total_bytes"] >= ended * 3 * 2 * 16e6 * (1 - 1e-6)


def test_a_sweep_says_where_it_runs(sweep: Write, tmp_path: Path) -> None:
    done = waystage(sweep(), "--on", "lab")
    assert done.code == 2 and "use --on sim" in done.err
    done = waystage(sweep(), "--policy", "ecmp")
    assert done.code == 2 and "--policy: small.yaml is a sweep, which has none" in done.err


def test_the_shipped_sweep_of_the_dissertation_says_what_it_needs(tmp_path: Path) -> None:
    copy = shutil.copy(REPOSITORY / "experiments" / "cg-placement.yaml", tmp_path)
    done = waystage(copy, "--out", tmp_path / "out")
    assert done.code == 3
    assert "cg-placement.yaml:9: topology.0.params.path: there is no file pfsim/milk.graphml" in done.err
    if PFSIM.is_dir():
        (tmp_path / "pfsim").symlink_to(PFSIM)
        assert waystage(copy, "--out", tmp_path / "out").code == 0
        runs = result_of(tmp_path / "out")["runs"]
        assert len(runs) == 12 and runs[2]["metrics"]["max_load_bytes"] / runs[0]["metrics"][
            "max_load_bytes"
        ] == pytest.approx(0.500022154, abs=1e-9)


def test_the_shipped_sweep_that_needs_nothing_runs(tmp_path: Path) -> None:
    text = (REPOSITORY / "experiments" / "placement.yaml").read_text(encoding="utf-8")
    assert "duration: 600\n" in text and "seeds: [1, 2, 3]\n" in text
    (tmp_path / "placement.yaml").write_text(
        text.replace("duration: 600\n", "duration: 150\n").replace("seeds: [1, 2, 3]\n", "seeds: [1, 2]\n")
    )
    done = waystage(tmp_path / "placement.yaml", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "32 of 32 runs" in done.out and " to " in done.out, "the interval over seeds is missing"
    rows: dict[tuple[str, ...], list[float]] = {}
    for run in result_of(tmp_path / "out")["runs"]:
        key = (run["scheduler"], run["host_selector"], run["process_mapper"], run["router"])
        rows.setdefault(key, []).append(run["metrics"]["max_load_bytes"])
    assert min(rows["fcfs", "topology-aware", "application-aware", "greedy-max"]) > 0
    assert sum(rows["fcfs", "topology-aware", "application-aware", "greedy-max"]) < sum(
        rows["fcfs", "linear", "block", "d-mod-k"]
    )


def test_two_runs_of_a_sweep_are_compared_by_combination(sweep: Write, tmp_path: Path) -> None:
    for out, lists in (("a", "[d-mod-k, greedy-max]"), ("b", "[d-mod-k, ecmp]")):
        assert waystage(sweep(("[d-mod-k, greedy-max]", lists)), "--out", tmp_path / out).code == 0
    found = waystage(tmp_path / "a", tmp_path / "b", "--json", command="compare").expect().json["differences"]
    assert {row["name"].split()[-1] for row in found} == {"d-mod-k"}
    assert all(row["error_pct"] == 0 and row["first"] == row["second"] for row in found)


def test_the_comparison_of_a_folder_can_be_seen_again(sweep: Write, tmp_path: Path) -> None:
    done = waystage(sweep(), "--out", tmp_path / "out")
    assert waystage(tmp_path / "out", command="report").out == done.out
    path = tmp_path / "out" / "result.json"
    of_schema_1 = path.read_text().replace('"schema": 2', '"schema": 1').replace('"sweep"', '"scenario"')
    path.write_text(of_schema_1)
    assert waystage(tmp_path / "out", "--json", command="report").json["runs"] == 2
    path.write_text(of_schema_1.replace('"schema": 1', '"schema": 9'))
    later = waystage(tmp_path / "out", command="report")
    assert later.code == 3 and "schema 9 is newer than 2" in later.err
