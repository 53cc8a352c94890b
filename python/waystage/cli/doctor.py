"""`waystage doctor`: check what this machine can run, what is missing, and how to install it.

Arrives: nothing.
Leaves: a table, or with --json one object; exit status 4 if the main job cannot run.
Must not know: how the checks work.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from waystage.cli.common import ExitCode, Output, output_options, table


@click.command()
@output_options
def command(output: Output) -> None:
    """Check what this machine can run, what is missing, and how to install it.

    Tries each component where that is quick: creates a namespace, compiles a program, starts a small cluster. It
    removes everything it created and installs nothing. Exit status 4 if a requirement of the main job,
    'waystage run ... --on lab', is missing.
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
        parts += ["To fix what is missing or limited:", *remedies, ""]
    parts.append(
        "The main job can run here." if good else "The main job cannot run here: a requirement is missing."
    )
    output.result({"ready": good, "checks": [asdict(f) for f in findings]}, "\n".join(parts))
    if not good:
        click.get_current_context().exit(ExitCode.MISSING)
