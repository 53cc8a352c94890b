"""The command line as a user meets it: help, output, errors and exit statuses."""

from __future__ import annotations

import copy
import importlib
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness import Waystage
from waystage import __version__
from waystage.cli import errors
from waystage.cli import main as entry
from waystage.cli.common import ExitCode, Output, TimeLeft, UserError, duration, output_options, table
from waystage.cli.examples import EXAMPLES

ALL_ERRORS = sorted(errors.ERRORS)


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = dict(commands(entry.group))


def test_help_lists_every_subcommand_with_one_line(waystage: Waystage) -> None:
    ran = waystage("--help")
    assert ran.code == 0
    for name in entry.group.list_commands(click.Context(entry.group)):
        assert f"  {name} " in ran.out
        assert entry.SUBCOMMANDS[name][:40] in ran.out


def test_version(waystage: Waystage) -> None:
    assert __version__ in waystage("--version").out


@pytest.mark.parametrize("path", sorted(EVERY), ids=" ".join)
def test_each_subcommand_and_each_option_is_explained(path: tuple[str, ...]) -> None:
    command = EVERY[path]
    assert command.help, f"waystage {' '.join(path)} has no help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"waystage {' '.join(path)}: {parameter.opts} has no help"


@pytest.mark.parametrize("path", sorted(EVERY), ids=" ".join)
def test_each_leaf_prints_its_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([*path, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: waystage {' '.join(path)}")


def test_each_leaf_knows_json_and_quiet() -> None:
    lacking = [
        " ".join(path)
        for path, command in EVERY.items()
        if not isinstance(command, click.Group)
        and path
        # A script, and other programs' output.
        not in {("completion",), ("lab", "exec"), ("lab", "wan", "exec"), ("profile",), ("mpi",)}
        and not {"--json", "--quiet"} <= {o for p in command.params for o in p.opts}
    ]
    assert not lacking


def test_an_unknown_subcommand_is_a_usage_error_in_one_line(waystage: Waystage) -> None:
    ran = waystage("unheard-of")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert ran.err.startswith("waystage: error: ") and ran.err.count("\n") == 1
    assert "unheard-of" in ran.err


def test_with_json_an_error_is_one_object_on_stdout(waystage: Waystage) -> None:
    ran = waystage("bench", "unheard-of", "--json", WAYSTAGE_BENCH_DIR="/nowhere")
    assert ran.code == ExitCode.BAD_INPUT
    assert ran.json["exit_code"] == ExitCode.BAD_INPUT
    assert "/nowhere" in ran.json["error"]


def test_json_after_a_double_dash_belongs_to_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    entry.run(["unheard-of", "--", "--json"])
    captured = capsys.readouterr()
    assert captured.out == "" and "waystage: error:" in captured.err


def run_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch, *extra: str) -> int:
    """The exit status of `waystage` where its subcommand raises `error`."""

    @click.command()
    @output_options
    def failing(output: Output) -> None:
        raise error

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, context, name: failing)
    return entry.run(["failing", *extra])


@pytest.mark.parametrize("code", [c for c in ExitCode if c is not ExitCode.OK])
def test_a_user_error_is_its_sentence_and_its_status(
    code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(UserError("fix it", code), monkeypatch) == code
    assert capsys.readouterr().err == "waystage: error: fix it\n"


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_raising(KeyboardInterrupt(), monkeypatch) == ExitCode.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_a_system_error_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(FileNotFoundError(2, "No such file or directory", "/a/b"), monkeypatch) == 1
    assert capsys.readouterr().err == "waystage: error: /a/b: No such file or directory\n"


def test_a_defect_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_raising(ZeroDivisionError("division by zero"), monkeypatch) == ExitCode.FAILED
    error = capsys.readouterr().err
    assert "internal error, ZeroDivisionError: division by zero" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ALL_ERRORS)
def test_each_error_of_the_table_exists_and_has_its_status(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    assert issubclass(kind, Exception)
    assert run_raising(Exception.__new__(kind, "what, where, how to fix"), monkeypatch) == errors.ERRORS[name]
    assert "internal error" not in capsys.readouterr().err


def test_termination_unwinds_as_an_interrupt_does(tmp_path: Path) -> None:
    """`kill` must leave a command the chance to take its lab down."""
    program = (
        "import sys, time, click\n"
        "from waystage.cli import main as entry\n"
        "@click.command()\n"
        "def waiting():\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(600)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
        "entry.LazyGroup.get_command = lambda *_: waiting\n"
        "entry.main(['waiting'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=150)
    assert out == "cleaned up\n" and "interrupted" in err
    assert process.returncode == ExitCode.INTERRUPTED


CLOSED = """
import os, sys
from waystage.cli import main as entry
import click
def commands(group, path):
    context = click.Context(group)
    for name in group.list_commands(context):
        below = group.get_command(context, name)
        yield (*path, name)
        if isinstance(below, click.Group):
            yield from commands(below, (*path, name))
for path in [(), *commands(entry.group, ())]:
    for words, wanted in (([*path, "--help"], {0}), ([*path, "--no-such-option"], {1, 2})):
        child = os.fork()
        if child == 0:
            reading, writing = os.pipe()
            os.close(reading)
            os.dup2(writing, 1), os.dup2(writing, 2)
            os._exit(entry.run(words))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in wanted:
            print(words, status)
"""


def test_no_command_minds_a_reader_that_goes_away() -> None:
    """`waystage X | head -1` ends with the status that it would have had, without a word."""
    ran = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("words", "status"), [("--help", 0), ("copy --help", 0), ("copy", 2), ("report /nowhere --json", 3)]
)
def test_a_closed_pipe_leaves_no_complaint_at_the_end(words: str, status: int, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        for streams in (
            {"stdout": pipe, "stderr": subprocess.PIPE},
            {"stdout": subprocess.PIPE, "stderr": pipe},
        ):
            ran = subprocess.run(
                [sys.executable, "-m", "waystage", *words.split()],
                cwd=tmp_path,
                text=True,
                check=False,
                **streams,
            )
            said = (ran.stderr if streams["stdout"] is pipe else "") or ""
            assert ran.returncode == status and "Traceback" not in said and "BrokenPipe" not in said, said


def test_closed_standard_streams_harm_no_file(tmp_path: Path) -> None:
    """`waystage copy ... >&- 2>&-`: no file that is opened gets the descriptor of a stream."""
    data = b"x" * 100_000
    (tmp_path / "from").write_bytes(data)
    code = "import os, sys; [os.close(n) for n in (0, 1, 2)]; os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-m", "waystage", "copy", "-v", "from", "to"]
    ran = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, check=False)
    assert ran.returncode == 0 and (tmp_path / "to").read_bytes() == data
    for closed in (">&-", "2>&-", "<&-"):
        shell = f"exec {sys.executable} -m waystage --help {closed}"
        ran = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), closed


def test_the_time_left_follows_the_last_half_minute() -> None:
    left = TimeLeft()
    assert left.look(0.0, 0.0) is None
    assert left.look(0.1, 10.0) == pytest.approx(90.0)
    for second in range(11, 100):  # five times slower
        shown = left.look(0.1 + (second - 10) * 0.002, float(second))
    assert shown == pytest.approx((0.9 - 89 * 0.002) / 0.002, rel=0.01)
    assert left.look(0.05, 101.0) is None  # more was found
    assert [duration(s) for s in (4.2, 130, 11_100)] == ["4 s", "2 min", "3 h 05 min"]


def test_verbose_adds_details_and_log_messages_and_excludes_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    Output(verbose=True).detail("shown")
    Output().detail("hidden")
    assert capfd.readouterr().err == "shown\n"
    assert entry.run(["doctor", "-v", "-q"]) == ExitCode.USAGE
    assert "exclude each other" in capfd.readouterr().err


def test_help_opens_no_heavy_library(waystage: Waystage) -> None:
    """The command line answers at once: what a subcommand needs is imported when it is called."""
    program = (
        "import sys\nfrom waystage.cli import main as entry\nentry.run(['--help'])\n"
        "heavy = {'numpy', 'matplotlib', 'zenoh', 'os_ken', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, waystage: Waystage) -> None:
    ran = waystage("completion", shell)
    assert ran.code == 0 and "_WAYSTAGE_COMPLETE" in ran.out and "waystage" in ran.out


def test_completion_completes_subcommands_and_options(waystage: Waystage) -> None:
    words = {"_WAYSTAGE_COMPLETE": "bash_complete", "COMP_WORDS": "waystage doc", "COMP_CWORD": "1"}
    program = "from waystage.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "plain,doctor"


def test_an_interpreter_that_used_zenoh_is_left_standing_at_the_end() -> None:
    """Taking it down while Zenoh's threads run ended one controller in thirty with SIGABRT."""
    program = (
        "import atexit, zenoh\n"
        "from waystage.cli import main\n"
        "class Kept:\n"
        "    def __del__(self): print('taken down', flush=True)\n"
        "kept = Kept()\n"
        "main.run = lambda arguments: atexit.register(print, 'other exit functions ran') and 2\n"
        "main.main([])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == ExitCode.USAGE, ran.stderr
    assert ran.stdout == "other exit functions ran\n"


def test_quiet_and_json_silence_what_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Output(quiet=True).result({"a": 1}, "for people")
    Output(json=True).say("for people")
    Output(json=True).result({"a": 1}, "for people")
    assert capsys.readouterr().out == '{"a": 1}\n'


def test_progress_off_a_terminal_is_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress() as progress:
        for step in range(100):
            progress(f"step {step}", step / 100)
        progress("done", 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[  0%] step 0" and lines[-1] == "[100%] done"
    assert len(lines) < 10
    with Output(quiet=True).progress() as progress:
        progress("silent", 0.5)
    assert capsys.readouterr().err == ""


def test_a_table_aligns_numbers_to_the_right() -> None:
    rows = [{"name": "a", "value": 1.5}, {"name": "bcd", "value": 1000}]
    assert table(rows, ["name", "value"]) == "name  value\na       1.5\nbcd    1000"


def test_startup_is_quick(waystage: Waystage) -> None:
    """Generous: it takes a tenth of this time of a processor, also beside other programs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert waystage("--version").code == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_a_copy_starts_without_heavy_libraries(tmp_path: Path) -> None:
    """numpy, pyarrow and Zenoh cost more time than a small copy takes."""
    (tmp_path / "a").mkdir()
    program = (
        "import sys\n"
        "from waystage.cli.main import main\n"
        "try:\n"
        "    main(['copy', '--quiet', 'a', 'b'])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "print(*{'numpy', 'pyarrow', 'zenoh', 'dask'} & set(sys.modules))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ran.stdout.strip(), (tmp_path / "b").is_dir()) == ("", True)


@pytest.mark.parametrize(("name", "line"), [(n, x) for n, lines in EXAMPLES.items() for x in lines])
def test_each_example_of_the_help_parses(name: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words[:1] == ["waystage"] and words[1 : 1 + len(name.split())] == name.split()
    if any(mark in words for mark in ("|", ">")):
        words = words[: min(words.index(mark) for mark in ("|", ">") if mark in words)]
    command: click.Command = entry.group
    context = click.Context(command, info_name="waystage")
    rest = words[1:]
    while isinstance(command, click.Group) and rest and rest[0] in command.list_commands(context):
        below = command.get_command(context, rest[0])
        assert below is not None
        command, context, rest = below, click.Context(below, info_name=rest[0]), rest[1:]
    command = copy.copy(command)  # other tests of this process use the same object
    command.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type = click.STRING  # the files of an example need not exist
    command.make_context(name, rest)
    assert line in " ".join(EVERY[tuple(name.split())].get_help(context).split("\n"))


def test_every_subcommand_has_an_example() -> None:
    with_one = {name.split()[0] for name in EXAMPLES}
    assert set(entry.SUBCOMMANDS) - with_one == {"aggregator"}  # it is started by `mpi`


def test_without_a_subcommand_the_help_is_printed(waystage: Waystage) -> None:
    for words in ((), ("catalog",)):
        bare = waystage(*words)
        assert bare.code == 0 and bare.err == "" and bare.out == waystage(*words, "--help").out


def test_a_mistyped_subcommand_is_suggested(waystage: Waystage) -> None:
    ran = waystage("coppy", "a", "b")
    assert ran.code == 2 and "did you mean 'copy'" in ran.err
    assert waystage("zzz").code == 2
