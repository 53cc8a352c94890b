"""`waystage doctor`: tries, says what is missing and how to get it, and leaves nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import Waystage
from waystage.cli import doctor_checks
from waystage.cli.doctor_checks import CHECKS, Check, Finding, Trouble, ready


def test_each_check_gives_a_finding_and_each_lack_a_reason(waystage: Waystage) -> None:
    ran = waystage("doctor", "--json", timeout=170)
    found = ran.json
    assert ran.code == (0 if found["ready"] else 4)
    assert [c["name"] for c in found["checks"]] == [c.name for c in CHECKS]
    for check in found["checks"]:
        assert check["detail"] and check["purpose"]
        assert check["status"] in ("ok", "limited", "missing")


@pytest.mark.lab
def test_where_the_lab_runs_the_doctor_says_so_and_leaves_nothing(waystage: Waystage) -> None:
    def left() -> set[str]:
        namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        mounts = Path("/proc/self/mountinfo").read_text()
        return {line for line in (namespaces + mounts).splitlines() if "doctor" in line}

    ran = waystage("doctor", timeout=170)
    assert "started in" in ran.out
    assert left() == set()


def test_a_user_without_root_sees_what_root_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = {c.name: c.finding() for c in CHECKS if c.name in ("root", "namespaces", "links", "cluster")}
    assert all(f.status == "missing" and "root" in f.detail + f.remedy for f in found.values())


def test_without_the_programs_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "SEARCH_PATH", "/nonexistent")
    names = ("Open vSwitch", "Open MPI", "lldpd", "Slurm", "eBPF")
    found = {c.name: c.finding() for c in CHECKS if c.name in names}
    assert {f.status for f in found.values()} == {"missing"}
    assert "openvswitch-switch" in found["Open vSwitch"].remedy
    assert found["lldpd"].remedy == "apt-get install lldpd"
    assert found["Slurm"].remedy == "apt-get install slurmctld slurmd munge"
    assert found["eBPF"].remedy == "apt-get install clang bpftool"


def test_a_check_that_breaks_is_a_finding_and_not_a_crash() -> None:
    def broken() -> str:
        raise ZeroDivisionError("by zero")

    finding = Check("odd", True, "nothing", broken).finding()
    assert finding.status == "missing" and "ZeroDivisionError" in finding.detail


def test_only_what_is_needed_and_missing_stops_the_main_job() -> None:
    def finding(needed: bool, trouble: Trouble | None) -> Finding:
        def look() -> str:
            if trouble is not None:
                raise trouble
            return "there"

        return Check("part", needed, "something", look).finding()

    assert ready([finding(True, None), finding(False, Trouble("not there"))])
    assert ready([finding(True, Trouble("weak", status="limited"))])
    assert not ready([finding(True, None), finding(True, Trouble("not there"))])
