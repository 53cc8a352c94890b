"""Who may publish and read what, by the name in a certificate.

Arrives: rules as an operator writes them: names, event types.
Leaves: Zenoh's access control configuration.
Must not know: sessions, events.

Everything that no rule allows is denied. A rule gives a client what it needs for the types it names: to
publish, also to announce itself, to answer replays and to ask for confirmation; to read, also to
ask for replays. Only a `controller` may answer for the journal and the state, and acknowledge.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystage.backplane import keys

_DATA = ["put", "delete"]


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`names`: common names of certificates. `publish`, `read`: event types, `*` for all.

    `scopes`: where its events may say they come from, `*` anywhere. `controller`: everything.
    """

    names: tuple[str, ...]
    publish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("*",)
    controller: bool = False


def zenoh_access_control(access: tuple[AccessRule, ...]) -> dict[str, Any]:
    """The `access_control` section of Zenoh's configuration for a router with these clients."""
    rules: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    for index, rule in enumerate(access):
        own = _rules(f"rule-{index}", rule)
        rules += own
        subjects.append({"id": f"who-{index}", "cert_common_names": list(rule.names)})
        policies.append({"subjects": [f"who-{index}"], "rules": [r["id"] for r in own]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rules(name: str, rule: AccessRule) -> list[dict[str, Any]]:
    if rule.controller:
        return [_allow(f"{name}-all", ["ingress", "egress"], _EVERY_MESSAGE, ["waystage/**"])]
    found: list[dict[str, Any]] = []
    if rule.publish:
        out = [f"{keys.ROOT}/*/{t}/{s}/*" for t in rule.publish for s in rule.scopes]
        found += [
            _allow(f"{name}-publish", ["ingress"], _DATA, out),
            # Told who listens, a client need not send what nobody wants.
            _allow(f"{name}-interest", ["egress"], ["declare_subscriber"], out),
            _allow(f"{name}-alive", ["ingress"], ["liveliness_token"], [f"{keys.ALIVE}/*"]),
            _allow(f"{name}-answer", ["ingress"], ["declare_queryable", "reply"], [f"{keys.REPLAY}/*/*"]),
            _allow(f"{name}-asked", ["egress"], ["query"], [f"{keys.REPLAY}/*/*"]),
            _allow(f"{name}-confirm", ["ingress"], ["query"], [f"{keys.CONFIRM}/*"]),
            _allow(f"{name}-confirmed", ["egress"], ["reply", "declare_queryable"], [f"{keys.CONFIRM}/*"]),
            _allow(f"{name}-ack-wanted", ["ingress"], ["declare_subscriber"], [f"{keys.ACK}/*"]),
            _allow(f"{name}-ack", ["egress"], _DATA, [f"{keys.ACK}/*"]),
        ]
    if rule.read:
        wanted = [f"{keys.ROOT}/*/{t}/*/*" for t in rule.read]
        found += [
            _allow(f"{name}-read", ["egress"], _DATA, wanted),
            _allow(f"{name}-subscribe", ["ingress"], ["declare_subscriber"], wanted),
            _allow(
                f"{name}-who",
                ["ingress"],
                ["declare_liveliness_subscriber", "liveliness_query"],
                [f"{keys.ALIVE}/*"],
            ),
            _allow(f"{name}-there", ["egress"], ["liveliness_token", "reply"], [f"{keys.ALIVE}/*"]),
        ]
        asked = [f"{root}/*/{t}" for t in rule.read for root in (keys.REPLAY, keys.JOURNAL)]
        if "*" in rule.read:
            asked.append(keys.SNAPSHOT)  # the state shows every type
        found += [
            _allow(f"{name}-ask", ["ingress"], ["query"], asked),
            _allow(f"{name}-told", ["egress"], ["reply", "declare_queryable"], asked),
        ]
    return found


_EVERY_MESSAGE = [
    "put",
    "delete",
    "declare_subscriber",
    "query",
    "reply",
    "declare_queryable",
    "liveliness_token",
    "liveliness_query",
    "declare_liveliness_subscriber",
]


def _allow(name: str, flows: list[str], messages: list[str], key_exprs: list[str]) -> dict[str, Any]:
    return {
        "id": name,
        "permission": "allow",
        "flows": flows,
        "messages": messages,
        "key_exprs": key_exprs,
    }
