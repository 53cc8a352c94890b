"""What cannot be recorded is found out and said: no gap is silent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Waystage
from recorder_support import PROGRAMS, differences, run_in
from waystage.catalog import refresh

OTHER_USER = 65534


@pytest.fixture(scope="session")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static program without a C library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: install gcc")
    program = tmp_path_factory.mktemp("static") / "hidden"
    flags = ["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-O1"]
    subprocess.run(
        [compiler, *flags, "-o", str(program), str(PROGRAMS / "hidden.c")], check=True, timeout=150
    )
    return program


def starting(way: str) -> list[str]:
    """A command that starts its argument in some way, and does something that is seen besides."""
    by_python = {
        "execv": "os.execv(p, [p])",
        "fork-exec": "os.waitpid(os.fork() or os.execv(p, [p]), 0)",
        "posix_spawn": "os.waitpid(os.posix_spawn(p, [p], os.environ), 0)",
        "vfork": "import subprocess; subprocess.run([p], check=True, close_fds=False)",
        "system": "os.system(p)",
    }
    if way in by_python:
        return [sys.executable, "-c", f"import os, sys; p = sys.argv[1]; {by_python[way]}"]
    return {
        "env": ["env"],
        "shell": ["sh", "-c", '"$0"; touch seen'],
        "shell-exec": ["sh", "-c", 'touch seen; exec "$0"'],
        "deep": ["sh", "-c", 'sh -c \'sh -c "exec $0" "$0"\' "$0"'],
    }[way]


WAYS = ["execv", "fork-exec", "posix_spawn", "vfork", "system", "env", "shell", "shell-exec", "deep"]


@pytest.mark.parametrize("way", WAYS)
def test_a_static_program_is_a_gap_however_it_is_started(
    way: str, hidden: Path, tree: Path, catalogued: Path
) -> None:
    ran = run_in(tree, catalogued, [*starting(way), str(hidden)])
    assert ran.status == 0 and (tree / "hidden").exists()
    assert ran.applied is not None and ran.applied.gaps == {"unseen": 1}, (way, ran)
    assert ran.unseen == (os.fsencode(hidden),)
    assert (tree / "seen").exists() == (way in ("shell", "shell-exec"))
    refresh(catalogued)
    assert not differences(catalogued)


def test_the_command_names_what_it_could_not_see(
    waystage: Waystage, hidden: Path, tree: Path, catalogued: Path
) -> None:
    said = waystage(
        "catalog", "record", "-c", str(catalogued), "--", "env", "-C", str(tree), str(hidden)
    ).expect()
    assert "warning" in said.err and str(hidden) in said.err and "waystage catalog refresh" in said.err
    said = waystage("catalog", "record", "-c", str(catalogued), "--json", "--", str(hidden))
    value = json.loads(said.err.splitlines()[-1])
    # Both are in the catalog until it is refreshed.
    assert value["gaps"] == {"unseen": 2} and value["unseen"] == [str(hidden)]
    assert (
        "may miss what programs did that cannot be seen" in waystage("catalog", "query", str(catalogued)).err
    )


def test_programs_that_are_seen_and_starts_that_fail_are_no_gap(
    tree: Path, catalogued: Path, tmp_path: Path
) -> None:
    for name, first in (("script", "#!/bin/sh\n"), ("text", "")):
        (tmp_path / name).write_text(f"{first}touch by-{name}\n")
        (tmp_path / name).chmod(0o755)
    command = (
        "../script; ../text; env ../script; no-such-program; ./d; python3 -c 'import os\n"
        'try:\n os.execv("absent", ["absent"])\nexcept OSError:\n pass\n'
        'for _ in range(30):\n os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)\n\'; ls | cat > listed'
    )
    ran = run_in(tree, catalogued, ["sh", "-c", command])
    assert ran.applied is not None and ran.applied.gaps == {} and ran.unseen == ()
    assert not differences(catalogued)


def test_an_emptied_environment_is_a_gap(tree: Path, catalogued: Path) -> None:
    ran = run_in(tree, catalogued, ["env", "-i", "/bin/touch", "made"])
    assert ran.status == 0 and (tree / "made").exists()
    assert ran.applied is not None and ran.applied.gaps == {"unseen": 1} and ran.unseen == (b"/bin/touch",)


def test_rights_of_another_user_are_a_gap(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a set-user-ID program of another user needs root")
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        tree = folder / "tree"
        tree.mkdir()
        tree.chmod(0o777)
        touch = folder / "touch"
        shutil.copyfile("/bin/touch", touch)
        shutil.chown(touch, OTHER_USER, OTHER_USER)
        touch.chmod(0o4755)
        ran = run_in(tree, tmp_path / "catalog", ["sh", "-c", f"{touch} made; true"])
        if not (tree / "made").exists() or (tree / "made").stat().st_uid != OTHER_USER:
            pytest.skip("set-user-ID programs have no effect here")
        assert ran.applied is not None and ran.applied.gaps == {"unseen": 1}
        assert ran.unseen == (os.fsencode(touch),)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("way", ["static", "with the C library"])
def test_a_program_in_go_is_a_gap(way: str, tree: Path, catalogued: Path, tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        pytest.skip("there is no Go compiler")
    source = tmp_path / "main.go"
    imported = '\nimport "C"\n' if way != "static" else ""
    source.write_text(
        f'package main\n{imported}\nimport "os"\n\nfunc main() {{ os.WriteFile("made", nil, 0644) }}\n'
    )
    environment = os.environ | {
        "CGO_ENABLED": "0" if way == "static" else "1",
        "GOCACHE": str(tmp_path / "cache"),
        "GOPATH": str(tmp_path / "go"),
        "GOFLAGS": "-mod=mod",
        "GO111MODULE": "off",
    }
    built = subprocess.run(
        [go, "build", "-o", str(tmp_path / "main"), str(source)],
        env=environment,
        capture_output=True,
        check=False,
    )
    if built.returncode != 0:
        pytest.skip("this Go cannot build it")
    ran = run_in(tree, catalogued, [str(tmp_path / "main")])
    assert ran.status == 0 and (tree / "made").exists()
    assert ran.applied is not None and ran.applied.gaps == {"unseen": 1}


def test_io_uring_is_a_gap(tree: Path, catalogued: Path, compiled: Callable[[str], str]) -> None:
    ran = run_in(tree, catalogued, [compiled("uring")])
    if ran.status == 77:
        pytest.skip("this kernel has no io_uring")
    assert ran.applied is not None and ran.applied.gaps == {"blind": 1} and ran.unseen == (b"io_uring",)
