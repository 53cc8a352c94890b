"""The backplane: publish, subscribe, wait, test; embedded, or over the routers of a site.

Arrives: events from this process and others.
Leaves: the same events at every subscriber, control events each exactly once and in their source's order.
Must not know: what an event means, states, policies.

The interface is that of CLARISSE's control backplane (section III.B of its paper). Zenoh carries the
messages but promises at most one delivery; sequence numbers, replay from the publisher's
memory and cursors on disk are added here (why not Zenoh's own advanced publisher: docs/decisions/0001).
"""

from waystage.backplane.access import AccessRule
from waystage.backplane.config import (
    SITE_ENDPOINT,
    BackplaneConfig,
    BackplaneError,
    Tls,
    config_from,
    load_config,
)
from waystage.backplane.properties import Properties
from waystage.backplane.session import Backplane, BackplaneStats, NotConfirmed, Snapshot
from waystage.backplane.subscription import Missed, Subscription, SubscriptionStats

__all__ = [
    "SITE_ENDPOINT",
    "AccessRule",
    "Backplane",
    "BackplaneConfig",
    "BackplaneError",
    "BackplaneStats",
    "Missed",
    "NotConfirmed",
    "Properties",
    "Snapshot",
    "Subscription",
    "SubscriptionStats",
    "Tls",
    "config_from",
    "load_config",
]
