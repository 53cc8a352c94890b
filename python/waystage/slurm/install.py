"""Installation of the hooks: which files change and how, then the change itself.

Arrives: the path of slurm.conf, settings.
Leaves: a list of changes with a diff; changed files, each with a copy of what it was before.
Must not know: what the hooks do, the command line.

Nothing is written before everything has been checked. A file that a site has written itself is never replaced:
slurm.conf and burst_buffer.conf get a marked block, other files must be ours.
"""

from __future__ import annotations

import difflib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

import msgspec

from waystage.outputs import write_whole
from waystage.slurm import conf, scripts
from waystage.slurm.errors import SlurmConfigError
from waystage.slurm.settings import SlurmSettings

BACKUP = ".before-waystage"

STAGE_OUT_LIMIT_S = 24 * 24 * 3600
"""Slurm's largest. A stage-out whose hook times out is purged with its job, though the stager goes on."""

STAGE_IN_LIMIT_S = 7 * 24 * 3600
OTHER_LIMIT_S = 4 * 3600
"""pre_run and post_run, which move node-local data."""

SETTINGS = "waystage.json"
"""Beside slurm.conf: what `install` was given, for `check` and a later `install`."""

_FILES = ("burst_buffer.lua", "job_submit.lua", "waystage-prolog", "waystage-epilog", SETTINGS)

_MOST_BYTES = 16 * 1024 * 1024


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """`before` and `after` are None where the file is absent."""

    path: Path
    before: str | None
    after: str | None
    mode: int = 0o644

    @property
    def diff(self) -> str:
        old, new = (text.splitlines(keepends=True) if text else [] for text in (self.before, self.after))
        was, is_now = (
            str(self.path) if text is not None else "/dev/null" for text in (self.before, self.after)
        )
        return "".join(difflib.unified_diff(old, new, was, is_now))


def plan_install(slurm_conf: Path, settings: SlurmSettings) -> list[FileChange]:
    """What installing would change; empty where all is installed. Raises SlurmConfigError."""
    settings = msgspec.structs.replace(settings, conf=str(slurm_conf.absolute())).checked()
    folder = slurm_conf.absolute().parent
    text = _required(slurm_conf)
    wanted: dict[str, str] = {}
    files: dict[str, tuple[str, int]] = {}
    if settings.hooks == "burst-buffer":
        wanted["BurstBufferType"] = "burst_buffer/lua"
        files["burst_buffer.lua"] = (scripts.burst_buffer_lua(settings), 0o644)
    if settings.submission_checked:
        wanted["JobSubmitPlugins"] = "lua"
        files["job_submit.lua"] = (scripts.job_submit_lua(settings), 0o644)
    for hook in ("prolog", "epilog"):
        files[f"waystage-{hook}"] = (scripts.hook_script(settings, hook), 0o755)
        if not settings.keep_prolog:
            wanted[f"{hook.capitalize()}Slurmctld"] = str(folder / f"waystage-{hook}")
    files[SETTINGS] = (_saved(settings), 0o644)
    changes = [FileChange(path=slurm_conf, before=text, after=conf.with_block(text, wanted, slurm_conf.name))]
    if settings.hooks == "burst-buffer":
        changes.append(_burst_buffer_conf(folder, settings))
    for name, (after, mode) in files.items():
        before = _ours(folder / name)
        changes.append(FileChange(path=folder / name, before=before, after=after, mode=mode))
    changes += _removals(folder, set(files), settings.hooks == "burst-buffer")
    return [change for change in changes if change.before != change.after]


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    written_by: str
    settings: SlurmSettings


def _saved(settings: SlurmSettings) -> str:
    data = msgspec.json.encode(_Saved(written_by=scripts.MARK, settings=settings))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def saved_settings(slurm_conf: Path) -> SlurmSettings | None:
    """The settings of the last installation; None where there is none. Raises SlurmConfigError where damaged."""
    path = slurm_conf.parent / SETTINGS
    text = _read(path)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Saved).settings.checked()
    except (msgspec.MsgspecError, UnicodeError):
        raise SlurmConfigError(f"{path} is damaged: remove it, then install again with all options") from None


def plan_uninstall(slurm_conf: Path) -> list[FileChange]:
    """What uninstalling would change. Raises SlurmConfigError."""
    text = _required(slurm_conf)
    changes = [FileChange(path=slurm_conf, before=text, after=conf.without_block(text))]
    changes += _removals(slurm_conf.parent, set(), False)
    return [change for change in changes if change.before != change.after]


def apply(changes: list[FileChange], settings: SlurmSettings | None, user: str) -> None:
    """Write all changes, and make the state directory of `settings` for `user`. Raises OSError, SlurmConfigError."""
    for change in changes:
        if change.after is None:
            change.path.unlink(missing_ok=True)
            continue
        if change.before is not None:
            backup = change.path.with_name(change.path.name + BACKUP)
            if (
                not backup.exists()
                and scripts.MARK not in change.before
                and not conf.has_block(change.before)
            ):
                _write(backup, change.before, 0o600)
        _write(change.path, change.after, change.mode)
    if settings is not None:
        make_state_dir(Path(settings.state_dir), user)


def make_state_dir(folder: Path, user: str) -> None:
    """The hooks' folder, of SlurmUser alone. Raises SlurmConfigError where that user is unknown, OSError."""
    try:
        account = pwd.getpwnam(user) if not user.isdigit() else pwd.getpwuid(int(user))
    except KeyError:
        raise SlurmConfigError(f"SlurmUser={user} is no user of this host") from None
    for each in (folder, folder / "incoming"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(each, account.pw_uid, account.pw_gid)
        each.chmod(0o700)


def slurm_user(text: str) -> str:
    """SlurmUser of a slurm.conf; root by default."""
    return conf.keys_of(text).get("slurmuser", ("root", 0))[0].strip('"') or "root"


def burst_buffer_keys(settings: SlurmSettings) -> Mapping[str, str]:
    """What burst_buffer.conf needs."""
    keys = {
        # A failed stage-in must free the job's buffer, or the released job waits for ever.
        "Flags": "TeardownFailure",
        "StageInTimeout": str(STAGE_IN_LIMIT_S),
        "StageOutTimeout": str(STAGE_OUT_LIMIT_S),
        "OtherTimeout": str(OTHER_LIMIT_S),
    }
    return keys if settings.directive == "BB_LUA" else {"Directive": settings.directive, **keys}


def _burst_buffer_conf(folder: Path, settings: SlurmSettings) -> FileChange:
    path = folder / "burst_buffer.conf"
    before = _read(path)
    after = conf.with_block(before or "", burst_buffer_keys(settings), path.name)
    return FileChange(path=path, before=before, after=after)


def _removals(folder: Path, kept: set[str], burst_buffers: bool) -> list[FileChange]:
    """Our files that are not wanted any more; burst_buffer.conf loses its block, and goes where nothing else is in it."""
    found = []
    for name in _FILES:
        text = _read(folder / name)
        if name not in kept and text is not None and scripts.MARK in text:
            found.append(FileChange(path=folder / name, before=text, after=None))
    path = folder / "burst_buffer.conf"
    text = _read(path)
    if not burst_buffers and text is not None and conf.has_block(text):
        found.append(FileChange(path=path, before=text, after=conf.without_block(text) or None))
    return found


def _required(path: Path) -> str:
    text = _read(path)
    if text is None:
        raise SlurmConfigError(f"{path}: there is no such file; give Slurm's configuration with --conf")
    return text


def _ours(path: Path) -> str | None:
    """The text of a file of ours. Raises SlurmConfigError where the site has written it."""
    text = _read(path)
    if text is not None and scripts.MARK not in text:
        raise SlurmConfigError(
            f"{path} is the site's own and would be replaced: move it away, or install the other kind of hooks (--hooks)"
        )
    return text


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SlurmConfigError(f"{path}: {error.strerror}") from None
    try:
        if len(data) > _MOST_BYTES:
            raise SlurmConfigError(f"{path} is larger than 16 MiB: it is no configuration of Slurm")
        return data.decode("utf-8", errors="surrogateescape")
    except UnicodeDecodeError:
        raise SlurmConfigError(f"{path} is no text") from None


def _write(path: Path, text: str, mode: int) -> None:
    """Atomically; an existing file keeps its owner and mode."""
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    write_whole(path, text.encode("utf-8", errors="surrogateescape"), mode)
    if status is None:
        path.chmod(mode)  # whatever the umask
    elif os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)
