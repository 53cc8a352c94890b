"""`waystage doctor`: what this machine can run, what is missing, and how to get it.

Arrives: nothing.
Leaves: a table, or with --json one object; exit status 4 where the main job cannot run.
Must not know: how anything is checked.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from waystage.cli.common import ExitCode, Output, output_options, table


@click.command()
@output_options
def command(output: Output) -> None:
    """Say what this machine can run, what is missing, and how to get it.

    Each thing is tried where that is quick: a namespace is made, a program compiled, a small cluster
    brought up. Nothing is left behind and nothing is installed. Exit status 4 where something is missing
    that the main job, 'waystage run ... --on lab', needs.
    """
    from waystage.cli.doctor_checks import CHECKS, ready

    findings = []
    with output.progress() as progress:
        for index, check in enumerate(CHECKS):
            progress(f"looking at {check.name}", index / len(CHECKS))
            findings.append(check.finding())
    good = ready(findings)
    rows = [{"": f.status, "what": f.name, "needed for": f.purpose, "found": f.detail} for f in findings]
    remedies = [f"  {f.name}: {f.remedy}" for f in findings if f.remedy]
    parts = [table(rows, ["", "what", "needed for", "found"]), ""]
    if remedies:
        parts += ["How to get what is missing or limited:", *remedies, ""]
    parts.append(
        "The main job can run here."
        if good
        else "The main job cannot run here: something it needs is missing."
    )
    output.result({"ready": good, "checks": [asdict(f) for f in findings]}, "\n".join(parts))
    if not good:
        click.get_current_context().exit(ExitCode.MISSING)
