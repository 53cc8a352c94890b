"""MPICH: every message that goes through UCX is counted to the byte, and the result says what does not go there.

The programs are those of the tests of Open MPI. MPICH takes one host for several where its own variables ask it to.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Waystage, ran
from waystage.patterns import Pattern
from waystage.profiler import build

PROGRAMS = Path(__file__).parents[2] / "shim" / "tests"

HOSTS: dict[str, dict[str, str]] = {
    "one host": {},
    "two hosts": {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1"},
    "each alone": {"MPIR_CVAR_NOLOCAL": "1"},
}

Key = tuple[str, int, int]
Counts = Counter[Key]


class Ran:
    """What a program said that it sent, and what the profiler saw."""

    def __init__(self, pattern: Pattern, folder: Path) -> None:
        self.pattern = pattern
        self.said: Counts = Counter()
        self.said_messages: Counts = Counter()
        for file in folder.glob("said.*"):
            for line in file.read_text(encoding="utf-8").splitlines():
                kind, src, dst, count, total = line.split()
                self.said[kind, int(src), int(dst)] += int(total)
                self.said_messages[kind, int(src), int(dst)] += int(count)

    def seen(self, what: str, kinds: set[str], *, received: bool = False) -> Counts:
        found: Counts = Counter()
        for name in kinds:
            traffic = self.pattern.received if received else self.pattern.sent
            chosen = self.pattern.counted(kinds=[name], traffic=traffic)
            for src, dst, value in zip(chosen.src, chosen.dst, getattr(chosen, what), strict=True):
                found[name, int(src), int(dst)] += int(value)
        return +found

    def total(self, kind: str) -> int:
        return sum(self.seen("bytes", {kind}).values())


RunMpich = Callable[..., Ran]


@pytest.fixture(scope="module")
def mpich_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    for command in ("mpicc.mpich", "mpiexec.mpich"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is missing: install libmpich-dev and mpich")
    folder = tmp_path_factory.mktemp("programs")

    def program(source: str) -> Path:
        binary = folder / source.replace(".", "-")
        if not binary.exists():
            compile_line = ["mpicc.mpich", "-std=c11", "-O1", "-w", "-o", str(binary), str(PROGRAMS / source)]
            ran([*compile_line, "-lpthread"]).expect()
        return binary

    return program


@pytest.fixture(scope="module")
def run_mpich(mpich_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunMpich:
    """Each program runs once on each set of hosts: MPICH's ranks wait with both cores busy."""
    done: dict[tuple[str, int, str], Ran] = {}

    def run(source: str, ranks: int = 5, hosts: str = "one host") -> Ran:
        if (source, ranks, hosts) not in done:
            folder = tmp_path_factory.mktemp("run")
            output = folder / "run.pattern"
            passed = {"LD_PRELOAD": str(build("mpicc.mpich")), "WAYSTAGE_PROFILE_OUTPUT": str(output)}
            words = [
                word for name, value in (passed | HOSTS[hosts]).items() for word in ("-env", name, value)
            ]
            command = ["mpiexec.mpich", "-launcher", "fork", "-n", str(ranks), *words]
            command += [str(mpich_program(source)), str(folder / "said")]
            assert "waystage" not in ran(command).expect().err
            done[source, ranks, hosts] = Ran(Pattern.read(output), folder)
        return done[source, ranks, hosts]

    return run


def needs_ucx(ran: Ran) -> None:
    if ran.pattern.run["route"] != "ucx":
        pytest.skip("this MPICH does not send through UCX here")


RUNS = [
    ("sends.c", "one host"),
    ("sends.c", "two hosts"),
    ("communicators.c", "one host"),
    ("communicators.c", "two hosts"),
    ("collectives.c", "one host"),
    ("collectives.c", "two hosts"),
]


@pytest.mark.parametrize(("source", "hosts"), [*RUNS, ("onesided.c", "one host"), ("threads.c", "one host")])
def test_every_constructor_send_and_one_sided_operation(run_mpich: RunMpich, source: str, hosts: str) -> None:
    # Several threads that wait in each of several ranks take a minute on two cores, profiler or not.
    ran = run_mpich(source, 2 if source == "threads.c" else 5, hosts)
    kinds = {kind for kind, _, _ in ran.said}
    assert kinds, "the program said nothing"
    assert ran.seen("bytes", kinds) == +ran.said
    assert ran.seen("messages", kinds) == +ran.said_messages


@pytest.mark.parametrize(("source", "hosts"), RUNS)
def test_receivers_agree_with_senders(run_mpich: RunMpich, source: str, hosts: str) -> None:
    ran = run_mpich(source, hosts=hosts)
    needs_ucx(ran)
    kinds = {k.name for k in ran.pattern.kinds if k.group != "one-sided"}
    if source == "communicators.c":
        # It splits by type in an unspecified order; what the library then sends, only the library can tell.
        kinds -= {"setup"}
    else:
        assert not ran.pattern.warnings
    for what in ("bytes", "messages"):
        assert ran.seen(what, kinds) == ran.seen(what, kinds, received=True)


@pytest.mark.parametrize("hosts", HOSTS)
def test_collectives_are_split_by_operation_and_move_what_they_must(run_mpich: RunMpich, hosts: str) -> None:
    """collectives.c calls each three times with 12 integers for every rank, on all ranks or, gathering, to one."""
    ranks, each, calls = 5, 12 * 4, 3
    ran = run_mpich("collectives.c", ranks, hosts)
    needs_ucx(ran)
    operations = {k.name for k in ran.pattern.kinds if k.group == "collective"}
    rest = {"nonblocking", "collective", "setup", "neighbour"}
    assert {name for name in operations - rest if not ran.seen("messages", {name})} == set()
    assert not ran.seen("messages", {"nonblocking", "collective", "p2p"}), "a message told no operation"
    # However it is done, every rank but the root must get, or give, what is asked for at least once.
    least = dict.fromkeys(["bcast", "reduce", "gather", "gatherv", "scatter", "scatterv"], ranks - 1)
    least |= dict.fromkeys(["allgather", "allgatherv", "alltoall", "alltoallv"], ranks * (ranks - 1))
    least |= {"allreduce": 2 * (ranks - 1), "scan": ranks - 1, "exscan": ranks - 1}
    for name, shares in least.items():
        assert ran.total(name) >= calls * shares * each, name
    # Where each rank has something else for every other, nothing but one message a pair will do.
    pairs = {(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst}
    alltoallv = ran.seen("bytes", {"alltoallv"})
    assert {(s, d): alltoallv["alltoallv", s, d] for s, d in pairs} == dict.fromkeys(pairs, calls * each)


def test_large_messages_count_once(run_mpich: RunMpich) -> None:
    """300,000 bytes are more than UCX sends without asking the receiver first."""
    ran = run_mpich("sends.c")
    needs_ucx(ran)
    sizes = ran.pattern.counted(kinds=["p2p"]).size_class
    assert int((sizes == (300000).bit_length()).sum()) > 0
    assert ran.seen("bytes", {"p2p"}, received=True) == +ran.said


def test_the_route_and_a_changed_transport_are_said(
    waystage: Waystage, mpich_program: Callable[[str], Path], tmp_path: Path
) -> None:
    program = [str(mpich_program("collectives.c")), str(tmp_path / "said")]
    mpiexec = ["mpiexec.mpich", "-launcher", "fork", "-n", "3"]
    waystage(
        "profile", "-o", "a.pattern", "--through-network", "--", *mpiexec, *program, timeout=150
    ).expect()
    pattern = Pattern.read(tmp_path / "a.pattern")
    assert pattern.run["route"] == "ucx"
    [warning] = pattern.warnings
    assert "MPIR_CVAR_NOLOCAL was set" in warning


def test_where_ucx_is_not_seen_the_calls_are_counted_and_the_result_says_so(
    mpich_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """A rank alone sends nothing through UCX, so that nothing shows in which form its messages are."""
    output = tmp_path / "run.pattern"
    passed = ["-env", "LD_PRELOAD", str(build("mpicc.mpich")), "-env", "WAYSTAGE_PROFILE_OUTPUT", str(output)]
    command = ["mpiexec.mpich", "-launcher", "fork", "-n", "1", *passed]
    ran([*command, str(mpich_program("collectives.c")), str(tmp_path / "said")]).expect()
    pattern = Pattern.read(output)
    assert pattern.run["route"] == "pmpi"
    assert any("messages beneath collectives are missing" in warning for warning in pattern.warnings)
