"""Directives of job scripts, parsed by the Lua that slurmctld runs: good ones, mistakes, hostile ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.slurm import transfers
from waystage.slurm.scripts import burst_buffer_lua, job_submit_lua
from waystage.slurm.settings import Hooks, SlurmSettings, lua_text

LUA = shutil.which("lua5.1") or shutil.which("lua")
pytestmark = pytest.mark.skipif(LUA is None, reason="Lua is not installed: scripts/packages tests")

SETTINGS = SlurmSettings(command=("/bin/false",))

DRIVER = """
for index = 1, #arg do
  local file = io.open(arg[index], "rb")
  local found, why = directives.parse(file:read("*a"), SETTINGS)
  file:close()
  print(found and directives.json(found) or "error: " .. why)
end
"""


def parser(settings: SlurmSettings) -> str:
    text = (resources.files("waystage") / "data/slurm/directives.lua").read_text()
    return settings.as_lua() + text + DRIVER


def parse(folder: Path, *scripts: str | bytes, settings: SlurmSettings = SETTINGS) -> list[str]:
    """One line for each script: the transfers as JSON, or `error: ...`."""
    program = folder / "driver.lua"
    program.write_text(parser(settings))
    files = []
    for index, script in enumerate(scripts):
        file = folder / f"{index}.sh"
        file.write_bytes(script if isinstance(script, bytes) else script.encode())
        files.append(file)
    done = subprocess.run([str(LUA), program, *files], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(errors="replace").split("\n")[:-1]


def test_the_directives_of_the_manual_give_transfers(tmp_path: Path) -> None:
    (line,) = parse(
        tmp_path,
        "#!/bin/bash\n#SBATCH -N2\n#BB_LUA stage_in  source=lab:/run42 destination=/scratch/%u/%j/in\n\n"
        '#BB_LUA stage_out source="/scratch/a b/\\"q\\"" destination=lab:/run42/out verify=yes\r\n'
        "#BB_LUA stage_in source=/p destination=/tmp/%j type=directory node_local=yes\nsrun ./a.out\n",
    )
    assert json.loads(line) == [
        {
            "direction": "in",
            "source": "lab:/run42",
            "destination": "/scratch/%u/%j/in",
            "node_local": False,
            "verify": False,
        },
        {
            "direction": "out",
            "source": '/scratch/a b/"q"',
            "destination": "lab:/run42/out",
            "node_local": False,
            "verify": True,
        },
        {"direction": "in", "source": "/p", "destination": "/tmp/%j", "node_local": True, "verify": False},
    ]


MISTAKES = {
    "#BB_LUA stagein source=/a destination=/b": "unknown operation 'stagein': use stage_in or stage_out",
    "#BB_LUA stage_in souce=/a destination=/b": "unknown key 'souce' of stage_in",
    "#BB_LUA stage_in source=/a": "stage_in has no destination=PATH",
    "#BB_LUA stage_in source=/a source=/b destination=/c": "source is given twice",
    "#BB_LUA stage_in source=/a destination=b": "destination 'b' is no absolute path",
    "#BB_LUA stage_in source=a destination=/b": "source 'a' is no absolute path and no HOST:PATH",
    "#BB_LUA stage_in source=/a destination=lab:/b": "destination 'lab:/b' is no absolute path",
    "#BB_LUA stage_out source=lab:/a destination=/b": "source 'lab:/a' is no absolute path",
    "#BB_LUA stage_in source=--user=0 destination=/b": "begins with '-'",
    "#BB_LUA stage_in source=/a destination=/b/%q": "destination has '%q'",
    "#BB_LUA stage_in source=/a destination=/b/%": "destination has '%'",
    '#BB_LUA stage_in source="/a destination=/b': "the closing quote is missing",
    '#BB_LUA stage_in source="/a"b destination=/b': "a blank is missing after the closing quote",
    "#BB_LUA stage_in source=/a destination=/b verify=maybe": "verify 'maybe': use yes or no",
    "#BB_LUA stage_in source=/a destination=/b type=list": "type 'list': use file or directory",
    "#BB_LUA stage_in source=/a destination=$DW_JOB_STRIPED/b": "the site has set no job directory",
    "#BB_LUA jobdw capacity=1TB": "unknown operation 'jobdw'",
    "#BB_LUA": "says nothing",
    "#BB_LUA stage_out source=/a destination=/b node_local=yes": "node_local is for stage_in",
    "echo\n#BB_LUA stage_in source=/a destination=/b": "line 2: #BB_LUA stands below the first command",
}


def test_each_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    lines = parse(tmp_path, *MISTAKES)
    for (script, expected), line in zip(MISTAKES.items(), lines, strict=True):
        assert line.startswith(f"error: line {script.count(chr(10)) + 1}: #BB_LUA ") and expected in line, (
            script,
            line,
        )


def test_another_sites_word_or_case_is_named_where_it_would_be_passed_over(tmp_path: Path) -> None:
    words = ("#DW", "#bb_lua", "#BB", "#BBLUA", "#BB-LUA", "#dw")
    lines = parse(tmp_path, *(f"#!/bin/sh\n{word} stage_in source=/a destination=/b\n" for word in words))
    for word, line in zip(words, lines, strict=True):
        assert line == f"error: line 2: {word} is no directive at this site: write #BB_LUA"
    commented = (
        "##BB_LUA stage_in source=/a destination=/b\n# DW stage_in x=y\n#DW jobdw\necho\n#DW stage_in x=y\n"
    )
    assert parse(tmp_path, commented, "#dwarf stage_in x=y\n") == ["[]", "[]"]


def test_other_comments_are_none_of_ours(tmp_path: Path) -> None:
    assert parse(tmp_path, "#BB_LUAX stage\n# BB_LUA x\n#DW jobdw\n", "") == ["[]", "[]"]


def test_scripts_written_for_datawarp_pass(tmp_path: Path) -> None:
    settings = SlurmSettings(command=("/x",), directive="DW", job_directory="/scratch/%u/%j")
    good, swap = parse(
        tmp_path,
        "#DW jobdw type=scratch access_mode=striped capacity=1TiB\n"
        "#DW stage_in type=file source=/home/a destination=$DW_JOB_STRIPED/a\n"
        "#DW stage_out type=directory source=${DW_JOB_STRIPED}/o destination=/home/o\n",
        "#DW swap 10GiB\n",
        settings=settings,
    )
    assert [(t["source"], t["destination"]) for t in json.loads(good)] == [
        ("/home/a", "/scratch/%u/%j/a"),
        ("/scratch/%u/%j/o", "/home/o"),
    ]
    assert "swap: no swap is allocated" in swap


def test_sizes_are_bounded(tmp_path: Path) -> None:
    one = "#BB_LUA stage_in source=/a destination=/b\n"
    big, many, long = parse(tmp_path, "#\n" * 3_000_000, one * 65, one.replace("/a", "/" + "a" * 5000))
    assert "larger than 4 MiB" in big and "more than 64" in many and "longer than 4096 bytes" in long


words = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=40)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), words.map(str.encode)), min_size=1, max_size=40))
def test_any_bytes_give_transfers_or_one_line_of_error(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]
) -> None:
    scripts = [b"#BB_LUA " + text for text in texts] + [
        b'#BB_LUA stage_in destination=/b source="/' + text + b'"' for text in texts
    ]
    folder = tmp_path_factory.mktemp("any")
    lines = parse(folder, *scripts)
    assert len(lines) == len(scripts)
    for line in lines:
        if not line.startswith("error: line "):
            for transfer in msgspec.json.decode(line):
                assert transfer["direction"] in ("in", "out")
                assert not any(ord(c) < 32 for c in transfer["source"] + transfer["destination"])


HOOKS = """
slurm = { SUCCESS = 0, ERROR = -1, log_info = function() end, log_user = function(f, ...) print("user: " .. f:format(...)) end }
dofile(arg[1])
"""


def run_hooks(folder: Path, calls: str) -> tuple[str, list[list[str]], list[dict[str, Any]]]:
    """What the calls printed; the words of every client that the hooks ran; what it was given. squeue is a stand-in."""
    record = folder / "record"
    (folder / "waystage").write_text(
        f"#!/bin/sh\nfor w; do printf '%s\\0' \"$w\"; done >>{record}\nprintf '\\n' >>{record}\n"
        f"cat >>{folder}/given; echo >>{folder}/given\n"
    )
    (folder / "squeue").write_text(f"#!/bin/sh\ncat {folder}/squeue.out\n")
    for name in ("waystage", "squeue"):
        (folder / name).chmod(0o755)
    state = folder / "state"
    state.mkdir(exist_ok=True)
    client = (str(folder / "waystage"), "a b")
    settings = SlurmSettings(command=("/x",), client=client, state_dir=str(state), stager="/x y/'s")
    # The hooks set PATH themselves: the stand-in of squeue is put there.
    text = burst_buffer_lua(settings).replace("PATH=/usr/sbin:", f"PATH={folder}:/usr/sbin:")
    (folder / "burst_buffer.lua").write_text(text)
    (folder / "calls.lua").write_text(HOOKS + calls)
    done = subprocess.run(
        [str(LUA), folder / "calls.lua", folder / "burst_buffer.lua"],
        capture_output=True,
        text=True,
        check=False,
        errors="surrogateescape",
    )
    assert done.returncode == 0, done.stderr
    found = record.read_bytes() if record.exists() else b""
    ran = [
        [word.decode(errors="surrogateescape") for word in line.split(b"\0")[:-1]]
        for line in found.splitlines()
    ]
    given = (folder / "given").read_text() if ran else ""
    asked = [each for line in given.splitlines() if line for each in json.loads(line)]
    assert all(words[0] == "a b" for words in ran)
    return done.stdout, [words[1:] for words in ran], asked


def stage_in_of(
    folder: Path, script: str, job: str = "5|4294967294|c[1-2]|name"
) -> tuple[str, list[list[str]], list[dict[str, Any]]]:
    (folder / "script").write_text(script)
    (folder / "squeue.out").write_text(job + "\n")
    return run_hooks(
        folder,
        f"local script = {lua_text(str(folder / 'script'))}\n"
        "print(slurm_bb_setup('5', '0', '0', '', '', script)); print(slurm_bb_data_in('5', script))",
    )


def test_a_stage_in_is_submitted_for_the_jobs_user_and_awaited(tmp_path: Path) -> None:
    lines = (
        "#BB_LUA stage_in source=lab:/r destination=/s/%u/%A_%a/%x/%%\n"
        "#BB_LUA stage_out source=/o destination=lab:/o\n"
        "#BB_LUA stage_in source=/q destination=/s/%j verify=yes\n"
    )
    out, ran, asked = stage_in_of(tmp_path, lines)
    assert out.splitlines() == ["0", "0"]
    assert ran == [["transfer", str(tmp_path / "state/job-5")]]  # one process for all
    keys = [each.pop("key") for each in asked]
    assert [key.removeprefix("slurm-5-").partition("-")[2] for key in keys] == ["1", "3"]
    one = {
        "direction": "in",
        "source": "lab:/r",
        "destination": "/s/root/5_4294967294/name/%",
        "job_id": "5",
        "user": "0",
        "node_local": False,
        "nodes": [],
        "verify": "none",
    }
    assert asked == [one, {**one, "source": "/q", "destination": "/s/5", "verify": "cached"}]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["job-5"]


def test_a_hook_that_runs_twice_submits_the_same_key(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#BB_LUA stage_out source=/r destination=lab:/s\n")
    (tmp_path / "squeue.out").write_text("5|N/A|c1|n\n")
    call = f"slurm_bb_data_out('5', {lua_text(str(tmp_path / 'script'))})"
    _, _, asked = run_hooks(tmp_path, f"slurm_bb_setup('5', '0', '0'); {call}; {call}")
    assert len(asked) == 2 and asked[0] == asked[1]


def test_what_the_hooks_submit_is_what_the_watch_submits_for_a_job_that_was_forgotten(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#BB_LUA stage_out source=/r/%j/%a destination=lab:/s/%x verify=1\n")
    (tmp_path / "squeue.out").write_text('5|3|c1|a "b\\\n')
    script = lua_text(str(tmp_path / "script"))
    calls = f"slurm_bb_setup('5', '0', '0', '', '', {script}); slurm_bb_data_out('5', {script})"
    _, _, asked = run_hooks(tmp_path, calls)
    text = (tmp_path / "state/job-5").read_text()
    record = dict(line.split("=", 1) for line in text.splitlines())
    assert transfers.forgotten("5", record) == asked


def test_a_cancelled_jobs_record_goes_before_its_stage_in_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/job-5").write_text("uid=0\n")
    gone = f"not io.open({lua_text(str(tmp_path / 'state/job-5'))})"
    _, ran, _ = run_hooks(
        tmp_path,
        f"local popen = io.popen; io.popen = function(...) assert({gone}); return popen(...) end\n"
        "slurm_bb_job_teardown('5', '', 'true')",
    )
    assert ran == [["cancel", "5"]]


def test_node_local_data_names_each_node_of_the_job(tmp_path: Path) -> None:
    line = "#BB_LUA stage_in source=/r destination=/local node_local=yes\n"
    (tmp_path / "script").write_text(line)
    (tmp_path / "squeue.out").write_text("5|N/A|c[1-2]|n\n")
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho c1; echo c2\n")
    (tmp_path / "scontrol").chmod(0o755)
    script = lua_text(str(tmp_path / "script"))
    calls = f"slurm_bb_setup('5', '0', '0', '', '', {script}); print(slurm_bb_pre_run('5', {script}))"
    out, _, asked = run_hooks(tmp_path, calls)
    assert out.splitlines() == ["0"] and asked[0]["nodes"] == ["c1", "c2"] and asked[0]["node_local"]


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ""])
def test_a_job_name_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    script = "#BB_LUA stage_in source=/r destination=/s/%x\n"
    out, ran, _ = stage_in_of(tmp_path, script, f"5|N/A|c1|{name}")
    assert "which is no name of a file" in out and not ran


HOSTILE = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "';touch PWNED;'",
    '"; touch PWNED; "',
    "a b\tc",
    "\\",
    "*",
    "~",
    "!!",
    "&|<>#",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_sees_nothing_of_paths_and_job_names(tmp_path: Path, text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "  ")
    plain = text.replace("\t", "  ")
    name = plain.replace("/", "")
    out, _, asked = stage_in_of(
        tmp_path, f'#BB_LUA stage_in source="/r/{quoted}" destination=/s/%x\n', f"5|N/A|c1|{name}"
    )
    assert out.splitlines() == ["0", "0"]
    assert (asked[0]["source"], asked[0]["destination"]) == (f"/r/{plain}", f"/s/{name}")
    assert not list(tmp_path.rglob("PWNED")) and not Path("PWNED").exists()


@pytest.mark.parametrize("hooks", ["job-submit", "burst-buffer"])
def test_a_submission_with_a_mistake_is_refused_by_job_submit_too(tmp_path: Path, hooks: Hooks) -> None:
    settings = SlurmSettings(command=("/bin/false",), hooks=hooks, check_scripts=True)
    (tmp_path / "job_submit.lua").write_text(job_submit_lua(settings))
    calls = HOOKS + (
        'local bad, good = { script = "#BB_LUA stage_in source=/a\\n" }, { script = "#BB_LUA stage_in source=/a destination=/b\\n" }\n'
        "print(slurm_job_submit(bad, {}, 0), slurm_job_submit(good, {}, 0), good.admin_comment)\n"
        "print(slurm_job_submit({}, {}, 0))\n"
    )
    (tmp_path / "calls.lua").write_text(calls)
    done = subprocess.run(
        [str(LUA), tmp_path / "calls.lua", tmp_path / "job_submit.lua"],
        capture_output=True,
        text=True,
        check=True,
    )
    said, results, none = done.stdout.splitlines()
    assert said == "user: waystage: line 1: #BB_LUA stage_in has no destination=PATH"
    kept = '-1\t0\twaystage:[{"direction":"in"' if hooks == "job-submit" else "-1\t0\tnil"
    assert results.startswith(kept) and none == "0"
