"""`waystage lab`: start, inspect and remove an emulated cluster.

Arrives: a topology, a lab's name, a command to run on a host.
Leaves: a lab that runs until `lab down`; counters of its links; the output and exit status of the command.
Must not know: how namespaces and switches are made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from waystage.cli.common import ExitCode, Output, UserError, needs_root, output_options, table
from waystage.cli.lab_pfs import pfs
from waystage.cli.lab_wan import wan

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

DEFAULT_NAME = "lab"

DYING_S = 0.3
"""Longest time between a kill and the close of the process's sockets."""


def _complete_topology(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from waystage.interconnect.graphml import shipped_topologies

    names = [CompletionItem(n) for n in shipped_topologies() if n.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


_name_option = click.option(
    "--name",
    default=DEFAULT_NAME,
    show_default=True,
    envvar="WAYSTAGE_LAB",
    show_envvar=True,
    help="Name of the lab; several labs can run at once.",
)


@click.group()
def command() -> None:
    """Start, inspect and remove an emulated cluster.

    Hosts are network namespaces, switches are bridges of a private Open vSwitch, and links are rate-limited.
    Needs root; `waystage doctor` lists all requirements.
    """


command.add_command(pfs)
command.add_command(wan)


@command.command()
@click.argument("topology", default="paper", shell_complete=_complete_topology)
@_name_option
@click.option(
    "--controller/--no-controller",
    default=True,
    show_default=True,
    help="Start a controller. Without one, switches drop all packets until rules are installed.",
)
@click.option("--policy", default="ecmp", show_default=True, help="Policy of the controller.")
@click.option(
    "--slurm",
    is_flag=True,
    help="Start Slurm too: slurmctld, munge and a slurmd on every computing host (docs/how-to/lab-slurm.md).",
)
@click.option(
    "--slurm-hooks",
    type=click.Choice(["burst-buffer", "job-submit", "none"]),
    default="burst-buffer",
    show_default=True,
    help="Hooks of Waystage in that Slurm, with a staging service; as of `waystage slurm install --hooks`.",
)
@click.option(
    "--global-fs",
    type=click.Choice(["none", "glusterfs", "pfs"]),
    default="none",
    show_default=True,
    help="With --slurm: a global file system for its jobs. glusterfs: four bricks, with shards; pfs: an emulated striped "
    "one, as of `waystage lab pfs`.",
)
@click.option(
    "--global-fs-shape",
    metavar="SHAPE",
    help="With --global-fs pfs: shape file, or name of a shipped shape [default: nurion].",
)
@click.option(
    "--far",
    type=click.Choice(["none", "gfarm", "empty"]),
    default="none",
    show_default=True,
    help="With --slurm: a site at the far end of an emulated wide-area path. gfarm: a Gfarm of two filesystem nodes; "
    "empty: start what you need with `waystage lab exec far`.",
)
@click.option(
    "--far-path",
    metavar="PROFILE",
    help="With --far: profile of the path, a file or a shipped one, as of `waystage lab wan up` [default: wan-10ms].",
)
@output_options
def up(
    topology: str,
    name: str,
    controller: bool,
    policy: str,
    slurm: bool,
    slurm_hooks: str,
    global_fs: str,
    global_fs_shape: str | None,
    far: str,
    far_path: str | None,
    output: Output,
) -> None:
    """Start TOPOLOGY: a GraphML file, or the name of a shipped topology (default: paper).

    Returns when all hosts can reach each other. The lab runs until `waystage lab down`.

    With --slurm, `waystage lab exec slurmctl -- sbatch ...` submits to the lab's own Slurm.
    """
    if global_fs != "none" and not slurm:
        raise UserError("--global-fs is the file system of Slurm's jobs: give --slurm too", ExitCode.USAGE)
    if far != "none" and not slurm:
        raise UserError("--far is a site that Slurm's jobs stage from: give --slurm too", ExitCode.USAGE)
    if global_fs_shape and global_fs != "pfs":
        raise UserError("--global-fs-shape is for --global-fs pfs", ExitCode.USAGE)
    if far_path and far == "none":
        raise UserError("--far-path is for --far gfarm or --far empty", ExitCode.USAGE)
    needs_root("a lab")
    with _lab_errors():
        # Files that a user wrote are read before anything is started.
        shape = _shape(global_fs_shape or "nurion") if global_fs == "pfs" else None
        profile = _profile(far_path or "wan-10ms") if far != "none" else None
        from waystage.interconnect.graphml import read_topology
        from waystage.worlds.lab.controller_process import start_controller
        from waystage.worlds.lab.lab import Lab

        started = time.monotonic()
        lab = Lab(name, read_topology(topology), keep=True)
        with output.progress() as progress:
            progress("creating namespaces, links and switches", 0.0)
            lab.up()
            if controller:
                progress("starting the controller", 0.5)
                try:
                    start_controller(lab, policy)
                except BaseException:
                    lab.down()
                    raise
            if slurm:
                progress("starting Slurm", 0.7)
                _start_slurm(lab, slurm_hooks, global_fs, shape)
            if profile is not None:
                progress("starting the far site", 0.9)
                _start_far(lab, profile, gfarm=far == "gfarm")
            progress("up", 1.0)
        seconds = round(time.monotonic() - started, 2)
    found = _describe(lab) | {"seconds": seconds}
    hosts, switches = len(found["hosts"]), len(found["switches"])
    if slurm:
        enter = f"waystage lab exec --name {name} slurmctl --"
        output.note(f"Slurm has {len(found['slurm']['nodes'])} nodes: {enter} sbatch JOB, {enter} squeue")
        for line in _places(found):
            output.note(line)
    output.result(
        found,
        f"lab '{name}' is up after {seconds} s: {hosts} hosts, {switches} switches\n"
        f"try: waystage lab status, waystage lab exec {lab.topology.hosts[0].name} -- ip addr, waystage lab down",
    )


@command.command()
@_name_option
@output_options
def down(name: str, output: Output) -> None:
    """Remove the lab, or the remains of a killed one. Succeeds if there is none."""
    needs_root("removing a lab")
    with _lab_errors():
        from waystage.worlds.lab.lab import take_down

        found = take_down(name)
    output.result({"lab": name, "removed": found}, f"lab '{name}' is down" if found else f"no lab '{name}'")


@command.command()
@_name_option
@output_options
def status(name: str, output: Output) -> None:
    """Show hosts, switches and problems. Exit status 1 if the lab is not up or a process in it has died."""
    needs_root("inspecting a lab")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab

        lab = Lab.attach(name)
        found = _describe(lab)
    text = [f"lab '{name}', topology {found['topology']}, backplane {found['backplane']}", ""]
    text += [table(found["hosts"], ["host", "role", "ip", "mac", "switch", "port"]), ""]
    text += [table(found["switches"], ["switch", "dpid", "controller", "rules"])]
    if found["slurm"]:
        text += ["", f"Slurm: SLURM_CONF={found['slurm']['conf']}"]
        text += _places(found)
        text += [table(found["slurm"]["nodes"], ["node", "state"])]
    output.result(found, "\n".join(text))
    if found["problem"]:
        raise UserError(found["problem"])


@command.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    # The options of the command are its own.
    options_metavar="[--name TEXT]",
)
@_name_option
@click.argument("host")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def exec_(name: str, host: str, argv: tuple[str, ...]) -> None:
    """Run COMMAND on HOST in this terminal; exits with its status.

    The HOST `fabric` is the namespace of the switches, for `ovs-vsctl` and `ovs-ofctl`; with `lab up --slurm`,
    `slurmctl` is that of slurmctld, for `sbatch` and `squeue`; with `--far`, `far` is the far end of the path.
    """
    needs_root("entering a host")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab

        words, environment = Lab.attach(name).enter(host)
    if argv[0] == "--":
        argv = argv[1:]
    os.execve(words[0], [*words, *argv], environment)


@command.command()
@_name_option
@click.option("--watch", is_flag=True, help="Repeat until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Measurement interval in seconds.",
)
@click.option("--all", "show_all", is_flag=True, help="Include idle links.")
@output_options
def links(name: str, watch: bool, interval: float, show_all: bool, output: Output) -> None:
    """Show rate, utilization and drops of each link, by traffic class where a controller counts it.

    `queue` counts packets dropped at a full link queue since the lab started; `cpu` counts packets that the
    switches did not read in time, because this machine is too slow for the experiment. With --json and --watch,
    one object a line.
    """
    needs_root("inspecting a lab")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab
        from waystage.worlds.lab.usage import LinkWatch

        lab = Lab.attach(name)
        with LinkWatch(lab) as watcher:
            while True:
                use = watcher.next(interval)
                if watch and not output.json:
                    click.clear()
                output.result(use.as_json(), _links_table(use.rows(), show_all))
                if not watch:
                    return


def _links_table(rows: list[dict[str, Any]], show_all: bool) -> str:
    columns = ["from", "to", "Mbit/s", "of", "mpi", "staging", "io", "wan", "queue", "cpu", "state"]
    shown = (
        rows if show_all else [r for r in rows if r["Mbit/s"] or r["queue"] or r["cpu"] or r["state"] != "up"]
    )
    if not shown:
        return "all links are idle"
    return table(shown, columns)


def _describe(lab: Lab) -> dict[str, Any]:
    from waystage.worlds.lab.controller_process import switches_connected
    from waystage.worlds.lab.errors import LabError

    connected: dict[str, bool] = {}
    rules: dict[str, int] = {}
    slurm: dict[str, Any] | None = None
    problem = ""
    try:
        lab.check()  # who is halted answers no question
        connected = switches_connected(lab)
        rules = {switch: lab.rule_count(switch) for switch in connected}
        slurm = _describe_slurm(lab)
    except LabError as error:
        problem = str(error)
        time.sleep(DYING_S)
    try:
        lab.check()  # again: it names the cause of what a question to the switches met
    except LabError as error:
        problem = str(error)
    topology = lab.topology
    return {
        "lab": lab.name,
        "topology": topology.name,
        "backplane": lab.backplane_endpoint,
        "run_dir": str(lab.run_dir),
        "hosts": [
            {
                "host": host.name,
                "role": host.role,
                "ip": host.ip,
                "mac": host.mac,
                "switch": topology.attachment[host.name][0],
                "port": topology.attachment[host.name][1],
                "storage_dir": str(lab.host_dir(host.name)),
            }
            for host in topology.hosts
        ],
        "switches": [
            {
                "switch": switch.name,
                "dpid": switch.dpid,
                "controller": "connected" if connected.get(switch.name) else "away",
                "rules": rules.get(switch.name, 0),
            }
            for switch in topology.switches
        ],
        "slurm": slurm,
        "far": _describe_far(lab),
        "problem": problem,
    }


def _shape(source: str) -> Any:
    from waystage.worlds.lab import pfs

    return pfs.load(source)


def _profile(source: str) -> Any:
    from waystage.worlds.lab import wan

    return wan.load(source)


def _start_far(lab: Lab, profile: Any, *, gfarm: bool) -> None:
    from waystage.worlds.lab.slurm_far import FarSite

    try:
        site = FarSite(lab, profile)
        site.up()
        if gfarm:
            site.start_gfarm()
    except BaseException:
        lab.down()
        raise


def _places(found: dict[str, Any]) -> list[str]:
    """Where the global file system and the far site are, in lines."""
    slurm, far = found["slurm"], found["far"]
    lines = []
    if slurm and slurm["global_fs"]:
        lines.append(f"global file system: {slurm['global_fs']}")
    if far:
        lines.append(f"far site: {far['address']}, path '{far['path']}' of profile {far['profile']}")
    if far and far["gfarm"]:
        lines.append(f"Gfarm: {far['gfarm']} over the path, {far['gfarm_there']} at the far end")
    return lines


def _start_slurm(lab: Lab, hooks: Any, global_fs: str, shape: Any) -> None:
    from waystage.worlds.lab.slurm import LabSlurm

    try:
        slurm = LabSlurm(lab)
        slurm.start(None if hooks == "none" else hooks)
        if global_fs == "glusterfs":
            slurm.start_global_fs()
        if global_fs == "pfs":
            slurm.start_emulated_fs(shape)
    except BaseException:
        lab.down()
        raise


def _describe_slurm(lab: Lab) -> dict[str, Any] | None:
    """None where the lab has no Slurm. Raises LabError where it does not answer."""
    from waystage.worlds.lab.slurm import LabSlurm

    slurm = LabSlurm.of(lab)
    if slurm is None:
        return None
    nodes = [{"node": node, "state": state} for node, state in slurm.states().items()]
    point = slurm.folders.global_fs
    return {
        "conf": str(slurm.folders.conf),
        "global_fs": str(point) if os.path.ismount(point) else None,
        "nodes": nodes,
    }


def _describe_far(lab: Lab) -> dict[str, Any] | None:
    """None where the lab has no far site."""
    from waystage.worlds.lab.resources import Far

    far = Far.read(lab.resources.far)
    if far is None:
        return None
    from waystage.worlds.lab.slurm import LabSlurm
    from waystage.worlds.lab.slurm_far import FAR_ADDRESS

    folders = LabSlurm(lab).folders
    with_gfarm = os.path.ismount(folders.far_gfarm)
    return {
        "path": far.path,
        "profile": far.profile,
        "address": FAR_ADDRESS,
        "gfarm": str(folders.far_gfarm) if with_gfarm else None,
        "gfarm_there": str(folders.far_gfarm_there) if with_gfarm else None,
    }


@contextmanager
def _lab_errors() -> Iterator[None]:
    """Map errors of a lab to exit statuses."""
    from waystage.worlds.lab.errors import LabBusy, LabError, MissingProgram, NotRoot

    try:
        yield
    except NotRoot as error:
        raise UserError(str(error), ExitCode.NEEDS_ROOT) from error
    except MissingProgram as error:
        raise UserError(str(error), ExitCode.MISSING) from error
    except LabBusy as error:
        raise UserError(str(error), ExitCode.BUSY) from error
    except LabError as error:
        raise UserError(str(error), ExitCode.FAILED) from error
