"""The files that slurmctld runs: Lua for its plug-ins, and the programs of prolog and epilog.

Arrives: settings.
Leaves: texts. Each Lua text is complete: settings, the parser of directives, the hooks.
Must not know: where the files are written.
"""

from __future__ import annotations

import shlex
from importlib import resources

from waystage.slurm.settings import SlurmSettings

MARK = "Written by `waystage slurm install`"
"""In each file of ours, so that no file of a site is replaced."""


_REPORT = """\
# A job waits for its prolog: this only leaves a line on disk, which `waystage slurm watch` delivers.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 077
now=$(date +%s%N)
draft={folder}/.$now-$$
if printf '%s ' {line} >"$draft" && sync "$draft"; then
  mv "$draft" {folder}/"$now-$$"
fi
exit 0
"""


def burst_buffer_lua(settings: SlurmSettings) -> str:
    """burst_buffer.lua."""
    return _lua(settings, "buffers.lua", "burst_buffer.lua")


def job_submit_lua(settings: SlurmSettings) -> str:
    """job_submit.lua."""
    return _lua(settings, "job_submit.lua")


def hook_script(settings: SlurmSettings, hook: str) -> str:
    """The program of PrologSlurmctld or EpilogSlurmctld; `hook` is `prolog` or `epilog`."""
    head = f"#!/bin/sh\n# {MARK}; edit its options, not this file.\n"
    if settings.hooks == "burst-buffer":
        return head + _REPORT.format(
            folder=shlex.quote(f"{settings.state_dir}/incoming"),
            line='start "$SLURM_JOB_ID" "$SLURM_JOB_NODELIST" "$SLURM_JOB_USER"'
            if hook == "prolog"
            else 'end "$SLURM_JOB_ID"',
        )
    words = ["slurm", "hook", hook, "--state-dir", settings.state_dir, "--stage"]
    return head + (
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n"
        f"exec {settings.as_shell(*words)}\n"
    )


def _lua(settings: SlurmSettings, *names: str) -> str:
    folder = resources.files("waystage") / "data" / "slurm"
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("directives.lua", *names)]
    return f"-- {MARK}; edit its options, not this file.\n{settings.as_lua()}\n" + "\n".join(parts)
