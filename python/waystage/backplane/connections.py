"""Who connects, in the log: a certificate to which no rule gives rights is named.

Arrives: a session that listens, its access rules.
Leaves: lines in the log.
Must not know: events, subscriptions.

What Zenoh's access control refuses it drops where it arrives, without a word to the program: so it is said when the
connection is made.
"""

from __future__ import annotations

import logging
from typing import Any

import zenoh

from waystage.backplane.access import AccessRule

log = logging.getLogger(__name__)

NAMED_MAX = 1024
"""Certificates without rights that are named, each once: their holders may come back for ever."""


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
