"""A copy to or from another host, by an engine.

Arrives: a far end, how it is reached, options of the copy.
Leaves: a finished copy; notes on the connection.
Must not know: requests, the stager.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from waystage.native_options.copies import RemoteCopyOptions
from waystage.native_options.peers import Peer
from waystage.staging.requests import Reach, Submission
from waystage.wan.address import Remote
from waystage.wan.ssh import Shell, started
from waystage.wan.trust import KnownHosts, own_key, wan_dir

if TYPE_CHECKING:
    from waystage._native import RemoteCopy, WanError

UDP_WAIT_S = 3.0
"""As `waystage copy --udp-wait`."""


def copy_far(
    local: Path,
    remote: Remote,
    asked: Submission,
    shell: Shell,
    options: RemoteCopyOptions,
    follow: Callable[[RemoteCopy], None],
    *,
    push: bool,
) -> RemoteCopy:
    """Copy, calling `follow` with the copy while it runs. Raises WanError, and WanConfigError for ssh."""
    from waystage._native import RemoteCopy, WanError

    reach = asked.reach
    with ExitStack() as held:
        host, port, user, udp_wait_s = remote.host, reach.port, remote.user, UDP_WAIT_S
        hosts = KnownHosts(Path(reach.known_hosts) if reach.known_hosts else wan_dir() / "known_hosts")
        options = replace(options, connections=reach.connections, workers=max(4, reach.connections))
        if reach.ssh:
            server = held.enter_context(started(remote, shell))
            options = replace(
                options, known_as=f"{remote.user}@{remote.host}" if remote.user else remote.host
            )
            host, port, user, key, known = server.host, server.port, "", server.identity, server.key
            if server.through_ssh:
                udp_wait_s = 0.0
        else:
            try:
                key = own_key(Path(reach.identity) if reach.identity else None)
            except OSError as error:
                why = (
                    f"{error.strerror}: this user has no key for copies between hosts, and none can be made there: make "
                    "its home directory writable, or submit with 'waystage stage --identity'"
                )
                raise OSError(error.errno, why, error.filename) from None
            known = (reach.server_key if " " in reach.server_key else "") or (
                "" if reach.server_key else hosts.find(host, port) or ""
            )
        while True:
            peer = Peer(
                host=host,
                port=port,
                user=user,
                key=key,
                trusted=known or None,
                mode=reach.mode,
                rate_bytes_per_s=asked.rate_bytes_per_s or None,
                udp_wait_s=udp_wait_s or None,
            )
            try:
                with RemoteCopy(local, remote.path, peer, options, push=push) as copying:
                    follow(copying)
                    return copying
            except WanError as error:
                shown = _believed(error, reach) if not known else None
                if shown is None:
                    raise
                known = shown
                if not reach.server_key:
                    hosts.add(host, port, known)


def _believed(error: WanError, reach: Reach) -> str | None:
    """The key that the server presented, if the request says that it is to be trusted."""
    from waystage._native import wan_fingerprint

    if error.kind != "untrusted" or error.server_key is None:
        return None
    if reach.server_key:
        return error.server_key if wan_fingerprint(error.server_key) == reach.server_key.strip() else None
    return error.server_key if reach.trust_new else None
