"""Directives of job scripts, parsed by the Lua that slurmctld runs: good ones, mistakes, hostile ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.slurm.scripts import burst_buffer_lua, job_submit_lua
from waystage.slurm.settings import SlurmSettings, lua_text

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


def run_hooks(folder: Path, calls: str) -> tuple[str, list[list[str]]]:
    """What the calls printed, and the words of every `waystage` that the hooks ran. squeue is a stand-in."""
    record = folder / "record"
    (folder / "waystage").write_text(
        f"#!/bin/sh\nfor w; do printf '%s\\0' \"$w\"; done >>{record}\nprintf '\\n' >>{record}\necho 7\n"
    )
    (folder / "squeue").write_text(f"#!/bin/sh\ncat {folder}/squeue.out\n")
    for name in ("waystage", "squeue"):
        (folder / name).chmod(0o755)
    state = folder / "state"
    state.mkdir(exist_ok=True)
    settings = SlurmSettings(command=(str(folder / "waystage"),), state_dir=str(state), stager="/x y/'s")
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
    return done.stdout, [
        [word.decode(errors="surrogateescape") for word in line.split(b"\0")[:-1]]
        for line in found.splitlines()
    ]


def stage_in_of(
    folder: Path, script: str, job: str = "5|4294967294|c[1-2]|name"
) -> tuple[str, list[list[str]]]:
    (folder / "script").write_text(script)
    (folder / "squeue.out").write_text(job + "\n")
    return run_hooks(
        folder,
        f"print(slurm_bb_setup('5', '0', '0')); print(slurm_bb_data_in('5', {lua_text(str(folder / 'script'))}))",
    )


def test_a_stage_in_is_submitted_for_the_jobs_user_and_awaited(tmp_path: Path) -> None:
    out, ran = stage_in_of(tmp_path, "#BB_LUA stage_in source=lab:/r destination=/s/%u/%A_%a/%x/%%\n")
    assert out.splitlines() == ["0", "0"]
    submitted, waited = ran
    key = submitted.pop(submitted.index("--key") + 1)
    assert key.startswith("slurm-5-") and key.endswith("-1")
    assert submitted == [
        "stage",
        "in",
        "--job",
        "5",
        "--user",
        "0",
        "--key",
        "--",
        "lab:/r",
        "/s/root/5_4294967294/name/%",
    ]
    assert waited == ["stage", "wait", "7"]


def test_a_hook_that_runs_twice_submits_the_same_key(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#BB_LUA stage_out source=/r destination=lab:/s\n")
    (tmp_path / "squeue.out").write_text("5|N/A|c1|n\n")
    call = f"slurm_bb_data_out('5', {lua_text(str(tmp_path / 'script'))})"
    _, ran = run_hooks(tmp_path, f"slurm_bb_setup('5', '0', '0'); {call}; {call}")
    keys = [words[words.index("--key") + 1] for words in ran if "--key" in words]
    assert len(keys) == 2 and len(set(keys)) == 1


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ""])
def test_a_job_name_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    out, ran = stage_in_of(tmp_path, "#BB_LUA stage_in source=/r destination=/s/%x\n", f"5|N/A|c1|{name}")
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
    out, ran = stage_in_of(
        tmp_path, f'#BB_LUA stage_in source="/r/{quoted}" destination=/s/%x\n', f"5|N/A|c1|{name}"
    )
    assert out.splitlines() == ["0", "0"]
    assert ran[0][-2:] == [f"/r/{plain}", f"/s/{name}"]
    assert not list(tmp_path.rglob("PWNED")) and not Path("PWNED").exists()


def test_a_submission_with_a_mistake_is_refused_without_burst_buffers_too(tmp_path: Path) -> None:
    (tmp_path / "job_submit.lua").write_text(job_submit_lua(SETTINGS))
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
    assert results.startswith('-1\t0\twaystage:[{"direction":"in"') and none == "0"
