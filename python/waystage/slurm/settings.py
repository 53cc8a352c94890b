"""What an installation of the hooks keeps: commands, folders, endpoints.

Arrives: options of `waystage slurm install`.
Leaves: checked settings, and the settings as Lua and shell text.
Must not know: files, processes.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

import msgspec

from waystage.slurm import hook_client
from waystage.slurm.errors import SlurmConfigError

Hooks = Literal["burst-buffer", "job-submit"]

_DIRECTIVE = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,31}$")


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Raises SlurmConfigError from `checked` where a value cannot be used."""

    command: tuple[str, ...]
    """The words that run `waystage`, absolute: hooks have no PATH of a user."""
    client: tuple[str, ...] = msgspec.field(default_factory=hook_client.program)
    """The words that run the hooks' client of the staging service: an interpreter, options, its file."""
    hooks: Hooks = "burst-buffer"
    state_dir: str = "/var/lib/waystage-slurm"
    directive: str = "BB_LUA"
    """The word after `#` in job scripts: DW for scripts written for DataWarp."""
    job_directory: str = ""
    """What $DW_JOB_STRIPED means, e.g. /scratch/%u/%j; empty: it is refused."""
    stager: str = ""
    """Socket of the staging service; empty: its default."""
    endpoint: str = ""
    config: str = ""
    """Endpoint and configuration of the controllers, as of `waystage notify`; empty: the defaults."""

    conf: str = ""
    """Path of slurm.conf, for Slurm's commands in hooks; empty: Slurm's default."""
    check_scripts: bool = False
    """With burst buffers: job_submit.lua also refuses scripts whose directives are all misspelt, unseen by Slurm."""
    keep_prolog: bool = False
    """The site's own prolog and epilog of slurmctld call ours: slurm.conf's lines for them stay."""

    def checked(self) -> SlurmSettings:
        if not self.command or not self.command[0].startswith("/"):
            raise SlurmConfigError("the waystage command must be an absolute path: hooks run without a PATH")
        if not _DIRECTIVE.match(self.directive):
            raise SlurmConfigError(
                f"directive {ascii(self.directive)[:40]}: use a letter, then letters, digits and '_', e.g. DW"
            )
        for name, value in (
            ("state directory", self.state_dir),
            ("job directory", self.job_directory),
            ("stager", self.stager),
            ("endpoint", self.endpoint),
            ("configuration", self.config),
            ("slurm.conf", self.conf),
            *(("command", word) for word in (*self.command, *self.client)),
        ):
            if any(ord(c) < 32 or ord(c) == 127 for c in value):
                raise SlurmConfigError(f"{name} {ascii(value)[:60]} holds a control character")
        for name, value in (("state directory", self.state_dir), ("job directory", self.job_directory)):
            if value and not value.startswith("/"):
                raise SlurmConfigError(f"{name} {ascii(value)[:60]} is no absolute path")
        return self

    @property
    def submission_checked(self) -> bool:
        """Whether job_submit.lua is installed."""
        return self.check_scripts or self.hooks == "job-submit"

    @property
    def environment(self) -> tuple[str, ...]:
        """NAME=VALUE of each setting that commands read from their environment."""
        pairs = (
            ("SLURM_CONF", self.conf),
            ("WAYSTAGE_STAGER", self.stager),
            ("WAYSTAGE_ENDPOINT", self.endpoint),
            ("WAYSTAGE_CONFIG", self.config),
        )
        return tuple(f"{name}={value}" for name, value in pairs if value)

    def as_lua(self) -> str:
        """The table SETTINGS of the Lua scripts."""
        return (
            "local SETTINGS = {\n"
            f"  client = {{ {', '.join(map(lua_text, self.client))} }},\n"
            f"  environment = {{ {', '.join(map(lua_text, self.environment))} }},\n"
            f"  state_dir = {lua_text(self.state_dir)},\n"
            f"  directive = {lua_text(self.directive)},\n"
            f"  job_directory = {lua_text(self.job_directory)},\n"
            f"  only_check = {'true' if self.hooks == 'burst-buffer' else 'false'},\n"
            "}\n"
        )

    def as_shell(self, *words: str) -> str:
        """A command line for a POSIX shell that runs `waystage words...` with these settings."""
        return shlex.join(["env", *self.environment, *self.command, *words])


def lua_text(text: str) -> str:
    """A Lua string literal, in ASCII: every other byte as a decimal escape, which all versions of Lua read."""
    safe = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}" for byte in text.encode()
    )
    return f'"{safe}"'
