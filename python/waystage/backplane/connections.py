"""Logs connections whose certificate has no rights.

Arrives: a session that listens, its access rules.
Leaves: lines in the log.
Must not know: events, subscriptions.

Zenoh's access control drops messages silently, so the problem is logged when the connection is made.
"""

from __future__ import annotations

import logging
from typing import Any

import zenoh

from waystage.backplane.access import AccessRule

log = logging.getLogger(__name__)

NAMED_MAX = 1024
"""Limit of logged certificates, each once, because clients may reconnect for ever."""


def report(session: zenoh.Session, access: tuple[AccessRule, ...]) -> Any:
    """The listener to undeclare at the end."""
    known = {name for rule in access for name in rule.names}
    blamed: set[str] = set()

    def seen(event: zenoh.LinkEvent) -> None:
        name = event.link.auth_identifier
        if event.kind != zenoh.SampleKind.PUT or name is None or name in known | blamed:
            return
        if len(blamed) < NAMED_MAX:
            blamed.add(name)
            log.warning(
                "a connection with the certificate of %s: no access rule names it, and all that it sends is dropped",
                ascii(name)[:80],
            )

    handler = zenoh.handlers.Callback(seen, indirect=True)
    return session.info.declare_link_events_listener(handler, history=True)
