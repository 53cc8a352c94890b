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

    `scopes`: where its events may say they come from, `*` anywhere. `sources`: the names (the `name` of their
    configuration) they may publish under, `*` any. `controller`: everything.
    """

    names: tuple[str, ...]
    publish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] = ("*",)
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
        sources = ["*" if s == "*" else f"{s}.$*" for s in rule.sources]
        pairs = [(t, s) for t in rule.publish for s in sources]
        out = [f"{keys.ROOT}/*/{t}/{scope}/{s}" for t, s in pairs for scope in rule.scopes]
        replay = [f"{keys.REPLAY}/{s}/*" for s in sources]
        # The last answer to a replay carries no event.
        answers = [f"{keys.REPLAY}/{s}/{t}" for t, s in [*pairs, *((keys.END, s) for s in sources)]]
        confirm = [f"{keys.CONFIRM}/{s}/{t}" for t, s in pairs]
        ack = [f"{keys.ACK}/{s}" for s in sources]
        found += [
            _allow(f"{name}-publish", ["ingress"], _DATA, out),
            # Told who listens, a client need not send what nobody wants.
            _allow(f"{name}-interest", ["egress"], ["declare_subscriber"], out),
            _allow(
                f"{name}-alive", ["ingress"], ["liveliness_token"], [f"{keys.ALIVE}/{s}" for s in sources]
            ),
            _allow(f"{name}-replay", ["ingress"], ["declare_queryable"], replay),
            _allow(f"{name}-answer", ["ingress"], ["reply"], answers),
            _allow(f"{name}-asked", ["egress"], ["query"], replay),
            _allow(f"{name}-confirm", ["ingress"], ["query"], confirm),
            _allow(f"{name}-confirmed", ["egress"], ["reply", "declare_queryable"], confirm),
            # Who answers confirmations does so for everyone.
            _allow(f"{name}-confirmer", ["egress"], ["declare_queryable"], [f"{keys.CONFIRM}/*/*"]),
            _allow(f"{name}-ack-wanted", ["ingress"], ["declare_subscriber"], ack),
            _allow(f"{name}-ack", ["egress"], _DATA, ack),
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
        asked += [f"{keys.REPLAY}/*/{keys.END}", f"{keys.JOURNAL}/*/{keys.END}"]
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
