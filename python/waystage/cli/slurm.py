"""`waystage slurm`: the hooks of Waystage in Slurm.

Arrives: the path of slurm.conf, options of the hooks; the environment of a hook.
Leaves: changed configuration files with their diff; findings; reported jobs.
Must not know: what the files hold, how data is staged.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.connecting import configuration, connection_options

TAKE_IN_S = 0.2
"""Between looks for lines that hooks have left: a policy hears of a job's start that much later at most."""

FORGOTTEN_S = 20.0
"""How long a job waits for a hook that no slurmctld runs until Slurm is made to begin again."""

if TYPE_CHECKING:
    from waystage.slurm.install import FileChange

_conf_option = click.option(
    "--conf",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="SLURM_CONF",
    default="/etc/slurm/slurm.conf",
    show_default=True,
    show_envvar=True,
    help="Slurm's configuration; the hooks are installed beside it.",
)
_dry_option = click.option("--dry-run", is_flag=True, help="Show the changes as a diff and make none.")


@click.group()
def command() -> None:
    """Install, check and remove the hooks that stage data and report jobs in Slurm.

    With them, `#BB_LUA stage_in source=... destination=...` in a job script moves data before the job starts, and
    `stage_out` after it has ended (docs/reference/slurm.md).
    """


@command.command()
@_conf_option
@click.option(
    "--hooks",
    type=click.Choice(["burst-buffer", "job-submit"]),
    help="burst-buffer: stage in before the job has nodes; job-submit: for sites without burst buffers, in its prolog "
    "[default: burst-buffer].",
)
@click.option(
    "--directive", help="Word after # in job scripts, e.g. DW for scripts of DataWarp [default: BB_LUA]."
)
@click.option(
    "--job-directory", help="What $DW_JOB_STRIPED means, e.g. /scratch/%u/%j [default: it is refused]."
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the hooks, SlurmUser's alone [default: /var/lib/waystage-slurm].",
)
@click.option("--stager", help="Socket of the staging service [default: /run/waystage/stager.sock].")
@click.option("--endpoint", help="Endpoint of a controller, as of `waystage notify`.")
@click.option("--config", help="YAML file with endpoints and certificates, as of `waystage notify`.")
@click.option(
    "--check-scripts/--no-check-scripts",
    default=None,
    help="With burst buffers, also install job_submit.lua (JobSubmitPlugins=lua), which refuses scripts whose only "
    "directives are misspelt; Slurm shows those to no burst buffer.",
)
@click.option(
    "--keep-prolog/--own-prolog",
    default=None,
    help="Leave the site's PrologSlurmctld and EpilogSlurmctld, which call the installed waystage-prolog and "
    "waystage-epilog.",
)
@_dry_option
@output_options
def install(conf: Path, dry_run: bool, output: Output, **options: Any) -> None:
    """Install the hooks beside slurm.conf, and enable them there.

    Shows every change as a diff. slurm.conf gets a marked block, and a copy of it is kept as
    slurm.conf.before-waystage. Options that are not given keep the values of the last installation. Installing twice
    changes nothing. Restart slurmctld afterwards.
    """
    import msgspec

    from waystage.slurm import hook_client
    from waystage.slurm.install import apply, plan_install, saved_settings, slurm_user
    from waystage.slurm.settings import SlurmSettings

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "state_dir" in given:
        given["state_dir"] = str(given["state_dir"])
    before = saved_settings(conf)
    settings = msgspec.structs.replace(
        before or SlurmSettings(command=_command()), command=_command(), client=hook_client.program(), **given
    )
    changes = plan_install(conf, settings)
    _show(changes, dry_run, output)
    if not dry_run:
        user = slurm_user(conf.read_text(encoding="utf-8", errors="replace"))
        _written(lambda: apply(changes, settings, user), conf)
        if changes:
            output.note("restart slurmctld to load the plug-in: systemctl restart slurmctld")


@command.command()
@_conf_option
@_dry_option
@output_options
def uninstall(conf: Path, dry_run: bool, output: Output) -> None:
    """Remove the hooks and their block in slurm.conf. Jobs that are known already are still staged by the stager."""
    from waystage.slurm.install import apply, plan_uninstall

    changes = plan_uninstall(conf)
    _show(changes, dry_run, output)
    if not dry_run:
        _written(lambda: apply(changes, None, "root"), conf)
        if changes:
            output.note("restart slurmctld to unload the plug-in: systemctl restart slurmctld")


@command.command()
@_conf_option
@output_options
def check(conf: Path, output: Output) -> None:
    """Say what the installation lacks, one sentence each. Exit status 1 if anything is missing."""
    from waystage.slurm.check import check as findings_of
    from waystage.slurm.install import saved_settings
    from waystage.slurm.settings import SlurmSettings

    os.environ["SLURM_CONF"] = str(conf)
    settings = saved_settings(conf) or SlurmSettings(command=_command())
    findings = findings_of(conf, settings)
    rows = [{"": "ok" if each.ok else "missing", "what": each.what, "found": each.text} for each in findings]
    output.result(
        {"ok": all(each.ok for each in findings), "findings": [_as_json(each) for each in findings]},
        table(rows, ["", "what", "found"]),
    )
    if not all(each.ok for each in findings):
        click.get_current_context().exit(ExitCode.FAILED)


@command.command()
@click.argument("hook", type=click.Choice(["prolog", "epilog"]))
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="/var/lib/waystage-slurm",
    show_default=True,
    help="Directory of the hooks.",
)
@click.option(
    "--stage", is_flag=True, help="Also stage the data of the job; for sites without burst buffers."
)
@connection_options
def hook(
    hook: str, state_dir: Path, stage: bool, endpoint: str | None, config: Path | None, output: Output
) -> None:
    """Report a job's start or end; called by slurmctld as PrologSlurmctld and EpilogSlurmctld.

    Without a controller the report is kept and delivered later: the exit status is 0. With --stage the prolog stages
    in and waits, and the epilog submits the stage-out, which outlives the job. A failed stage-in holds the job, with
    the reason in its comment.
    """
    from waystage.slurm import hooks
    from waystage.slurm.errors import SlurmError

    which: hooks.Hook = "prolog" if hook == "prolog" else "epilog"
    store = hooks.state_store(state_dir)
    job_id = hooks.report(which, os.environ, store)
    hooks.deliver(store, configuration(endpoint, config), output.note)
    if stage and not (which == "epilog" and store.take_held(job_id)):
        try:
            hooks.stage(which, os.environ)
        except SlurmError as error:
            if which == "prolog":
                store.hold(job_id)
                hooks.hold(job_id, str(error), output.note)
            raise
    output.result({"hook": hook, "job_id": job_id})


@command.command()
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="/var/lib/waystage-slurm",
    show_default=True,
    help="Directory of the hooks.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=1.0),
    default=15.0,
    show_default=True,
    help="Seconds between comparisons with Slurm's jobs.",
)
@click.option("--once", is_flag=True, help="Compare once, deliver, and end.")
@connection_options
def watch(
    state_dir: Path, interval: float, once: bool, endpoint: str | None, config: Path | None, output: Output
) -> None:
    """Deliver what hooks could not, and report starts and ends that no hook saw.

    Compares Slurm's jobs with those reported: after slurmctld was killed or a controller was away, none is missing.
    Brings on a job whose buffer slurmctld forgot when it was killed: stages in anew, or stages out.
    """
    from waystage.slurm import commands, hooks
    from waystage.slurm.errors import SlurmError, SlurmMissing
    from waystage.slurm.recovery import Recovery

    store = hooks.state_store(state_dir)
    backplane = configuration(endpoint, config)
    lock = os.open(state_dir / "watch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(f"another 'waystage slurm watch' uses {state_dir}", ExitCode.BUSY) from None
    recovery = Recovery(state_dir, max(FORGOTTEN_S, 2 * interval))
    compare_at = 0.0
    while True:
        if store.take_in():
            hooks.deliver(store, backplane, output.note)
        if time.monotonic() < compare_at:
            time.sleep(TAKE_IN_S)
            continue
        compare_at = time.monotonic() + interval
        found, delivered = 0, False
        try:
            slurmctld_started = commands.started()  # first: the jobs are this slurmctld's, or a later one's
            jobs = commands.jobs()
            buffers = commands.buffers()  # last: a job that begins to stage meanwhile has one
            found = hooks.reconcile(store, jobs, interval)
            for said in hooks.rescue(state_dir, jobs, 2 * interval):
                output.note(said)
            for said in recovery.look(jobs, slurmctld_started, buffers):
                output.note(said)
            if found:
                output.note(f"{found} starts or ends of jobs were reported by no hook")
        except SlurmMissing:
            raise
        except SlurmError as error:
            if once:
                raise
            output.note(str(error))  # slurmctld is away: look again
        if found or store.waiting or once:
            delivered = hooks.deliver(store, backplane, output.note)
        if once:
            output.result({"found": found, "delivered": delivered})
            if not delivered:
                click.get_current_context().exit(ExitCode.FAILED)
            return


def _command() -> tuple[str, ...]:
    """The words by which hooks run this very Waystage."""
    beside = Path(sys.executable).with_name("waystage")
    if beside.exists():
        return (str(beside),)
    found = shutil.which("waystage")
    return (found,) if found else (sys.executable, "-m", "waystage")


def _show(changes: list[FileChange], dry_run: bool, output: Output) -> None:
    shown = [{"path": str(each.path), "diff": each.diff} for each in changes]
    text = "".join(each.diff for each in changes) if changes else "nothing to change"
    output.result({"changes": shown, "dry_run": dry_run}, text.rstrip("\n"))


def _written(write: Any, conf: Path) -> None:
    try:
        write()
    except PermissionError as error:
        raise UserError(
            f"{error.filename or conf.parent} cannot be written: run it as the owner of {conf.parent}, usually root",
            ExitCode.NEEDS_ROOT,
        ) from None


def _as_json(finding: Any) -> dict[str, Any]:
    return {"what": finding.what, "ok": finding.ok, "text": finding.text}
