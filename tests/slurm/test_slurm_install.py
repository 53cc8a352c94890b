"""`waystage slurm install`, `check` and `uninstall`: what becomes of a site's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Ran
from waystage.slurm import conf
from waystage.slurm.check import writable_by_others
from waystage.slurm.errors import SlurmConfigError
from waystage.slurm.install import BACKUP

Waystage = Callable[..., Ran]

SITE = """# the site's own
ClusterName=c1
SlurmUser=root
NodeName=n[1-2] CPUs=8  # two
PartitionName=p Nodes=n[1-2]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    (folder / "slurm.conf").write_text(SITE)
    (folder / "slurm.conf").chmod(0o640)
    return folder / "slurm.conf"


def install(waystage: Waystage, site: Path, *options: str) -> Ran:
    return waystage("slurm", "install", "--conf", site, "--state-dir", site.parent.parent / "state", *options)


def test_installing_enables_the_hooks_and_keeps_a_copy(waystage: Waystage, site: Path) -> None:
    done = install(waystage, site).expect(0)
    assert "+BurstBufferType=burst_buffer/lua" in done.out
    text = site.read_text()
    assert text.startswith(SITE) and f"PrologSlurmctld={site.parent}/waystage-prolog\n" in text
    assert site.with_name(site.name + BACKUP).read_text() == SITE
    assert site.stat().st_mode & 0o777 == 0o640
    assert os.access(site.parent / "waystage-epilog", os.X_OK)
    assert (site.parent.parent / "state").stat().st_mode & 0o777 == 0o700
    assert "StageOutTimeout=2073600" in (site.parent / "burst_buffer.conf").read_text()


def test_installing_twice_changes_nothing_and_keeps_options(waystage: Waystage, site: Path) -> None:
    install(waystage, site, "--directive", "DW", "--endpoint", "tcp/127.0.0.1:1").expect(0)
    before = {path.name: path.read_bytes() for path in site.parent.iterdir()}
    assert waystage("slurm", "install", "--conf", site).expect(0).out.strip() == "nothing to change"
    assert {path.name: path.read_bytes() for path in site.parent.iterdir()} == before
    assert "Directive=DW" in (site.parent / "burst_buffer.conf").read_text()
    assert "WAYSTAGE_ENDPOINT=tcp/127.0.0.1:1" in (site.parent / "burst_buffer.lua").read_text()


def test_a_dry_run_shows_the_changes_and_makes_none(waystage: Waystage, site: Path) -> None:
    done = install(waystage, site, "--dry-run", "--json").expect(0)
    assert {Path(change["path"]).name for change in done.json["changes"]} >= {
        "slurm.conf",
        "burst_buffer.lua",
    }
    assert [path.name for path in site.parent.iterdir()] == ["slurm.conf"]
    assert site.read_text() == SITE


def test_uninstalling_restores_the_sites_file(waystage: Waystage, site: Path) -> None:
    install(waystage, site).expect(0)
    site.write_text(site.read_text().replace("NodeName=n[1-2]", "NodeName=n[1-3]"))
    waystage("slurm", "uninstall", "--conf", site).expect(0)
    assert site.read_text() == SITE.replace("NodeName=n[1-2]", "NodeName=n[1-3]")
    assert {path.name for path in site.parent.iterdir()} == {"slurm.conf", "slurm.conf" + BACKUP}


def test_the_other_kind_of_hooks_replaces_the_first(waystage: Waystage, site: Path) -> None:
    install(waystage, site).expect(0)
    install(waystage, site, "--hooks", "job-submit").expect(0)
    names = {path.name for path in site.parent.iterdir()}
    assert "job_submit.lua" in names and not {"burst_buffer.lua", "burst_buffer.conf"} & names
    assert "JobSubmitPlugins=lua" in site.read_text() and "BurstBufferType" not in site.read_text()
    assert "--stage" in (site.parent / "waystage-prolog").read_text()


def test_burst_buffers_may_have_every_script_checked(waystage: Waystage, site: Path) -> None:
    install(waystage, site).expect(0)
    assert not (site.parent / "job_submit.lua").exists()
    install(waystage, site, "--check-scripts").expect(0)
    assert {"job_submit.lua", "burst_buffer.lua"} <= {path.name for path in site.parent.iterdir()}
    assert "JobSubmitPlugins=lua" in site.read_text() and "BurstBufferType" in site.read_text()
    assert "--stage" not in (site.parent / "waystage-prolog").read_text()
    install(waystage, site, "--no-check-scripts").expect(0)
    assert not (site.parent / "job_submit.lua").exists() and "JobSubmitPlugins" not in site.read_text()
    (site.parent / "job_submit.lua").write_text("-- mine\n")
    assert "job_submit.lua is the site's own" in install(waystage, site, "--check-scripts").expect(3).err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "BurstBufferType=burst_buffer/datawarp",
            "line 6: BurstBufferType=burst_buffer/datawarp is the site's own",
        ),
        ("prologslurmctld = /site/prolog", "install with --keep-prolog"),
    ],
)
def test_a_setting_of_the_site_is_named_and_not_changed(
    waystage: Waystage, site: Path, line: str, expected: str
) -> None:
    site.write_text(SITE + line + "\n")
    done = install(waystage, site).expect(3)
    assert expected in done.err and done.err.count("\n") == 1
    assert [path.name for path in site.parent.iterdir()] == ["slurm.conf"]


def test_the_sites_own_prolog_may_stay(waystage: Waystage, site: Path) -> None:
    site.write_text(SITE + "PrologSlurmctld=/site/p\nEpilogSlurmctld=/site/e\n")
    install(waystage, site, "--keep-prolog").expect(0)
    assert site.read_text().count("PrologSlurmctld") == 1


def test_a_list_of_submit_plugins_is_the_sites_to_extend(waystage: Waystage, site: Path) -> None:
    site.write_text(SITE + "JobSubmitPlugins=throttle\n")
    done = install(waystage, site, "--hooks", "job-submit").expect(3)
    assert "write JobSubmitPlugins=throttle,lua there" in done.err
    site.write_text(SITE + "JobSubmitPlugins=throttle,lua\n")
    install(waystage, site, "--hooks", "job-submit").expect(0)


def test_a_lua_file_of_the_site_is_not_replaced(waystage: Waystage, site: Path) -> None:
    (site.parent / "burst_buffer.lua").write_text("-- mine\n")
    assert "burst_buffer.lua is the site's own" in install(waystage, site).expect(3).err
    assert (site.parent / "burst_buffer.lua").read_text() == "-- mine\n"


def test_bad_options_are_one_sentence(waystage: Waystage, site: Path) -> None:
    assert "no absolute path" in install(waystage, site, "--job-directory", "scratch").expect(3).err
    assert "use a letter" in install(waystage, site, "--directive", "a b").expect(3).err
    assert (
        "there is no such file" in waystage("slurm", "check", "--conf", site.parent / "no.conf").expect(3).err
    )


def test_check_names_what_is_missing(waystage: Waystage, site: Path) -> None:
    found = waystage("slurm", "check", "--conf", site, "--json").expect(1).json
    missing = {each["what"]: each["text"] for each in found["findings"] if not each["ok"]}
    assert (
        "run 'waystage slurm install'" in missing["files"]
        and "start the staging service" in missing["stager"]
    )


def test_scripts_that_others_can_write_are_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = tmp_path / "hook"
    script.write_text("")
    script.chmod(0o755)
    if os.geteuid() == 0:
        assert writable_by_others(script, "root") is None
        os.chown(script, 65534, 65534)
        assert "belongs to another user" in (writable_by_others(script, "root") or "")
        os.chown(script, 0, 0)
    script.chmod(0o775)
    assert "can be written by others" in (writable_by_others(script, "root") or "")


lines = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=200)


@given(lines)
def test_a_block_goes_in_and_out_without_a_trace(text: str) -> None:
    try:
        edited = conf.with_block(text, {"BurstBufferType": "burst_buffer/lua"}, "slurm.conf")
    except SlurmConfigError:
        return
    again = conf.with_block(edited, {"BurstBufferType": "burst_buffer/lua"}, "slurm.conf")
    assert again == edited
    assert conf.without_block(edited) in (text, text + "\n")
