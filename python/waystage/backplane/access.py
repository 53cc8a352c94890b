"""Access rules: publish and read rights by certificate name, or for clients of a unix socket.

Arrives: rules in the operator's format: names, event types.
Leaves: Zenoh's access control configuration.
Must not know: sessions, events.

Everything else is denied. The right to publish a type includes announcing the publisher, answering replays and
requesting confirmation; the right to read includes requesting replays. Only a `controller` may answer for the journal
and the state, and acknowledge.

A source is `NAME.` and random digits. Unless a rule says otherwise, NAME is the name in the certificate of the very
connection: each name of a rule gets separate rules, so that none can publish as another of the same rule.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from waystage.backplane import keys

_DATA = ["put", "delete"]

LOCAL = "local"
"""Default prefix of the sources of unix-socket clients."""

SECURE_LINKS, UNIX_LINKS = ["tls", "quic"], ["unixsock-stream"]

_SOURCE = re.compile(r"[A-Za-z0-9_.=-]{1,128}")


class AccessError(ValueError):
    """Rules that give rights to the wrong clients; the message names the rule and the fix."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`names`: common names of certificates; or `local`: the clients of this process's unix sockets.

    `publish`, `read`: event types, `*` for all. `scopes`: where its events may say they come from, `*` anywhere.
    `sources`: the names (the `name` of their configuration) they may publish under, `*` any; without it each its own:
    the name in its certificate, or `local`. `controller`: everything.
    """

    names: tuple[str, ...] = ()
    local: bool = False
    publish: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("*",)
    sources: tuple[str, ...] = ()
    controller: bool = False


def check_access(access: tuple[AccessRule, ...], *, local: bool) -> None:
    """Raises AccessError for a rule without clients, and where one client's source could pass for another's.

    `local`: whether unix sockets are listened at.
    """
    if not access:
        return
    for rule in access:
        if bool(rule.names) == rule.local:
            raise AccessError(
                f"access rule {list(rule.names)}: give names of certificates, or local: true for unix sockets"
            )
        if LOCAL in rule.names and not rule.sources:
            raise AccessError(
                f"access rule: sources of {LOCAL!r} are those of unix sockets: give the rule for the certificate sources"
            )
        for name in () if rule.controller else rule.sources or rule.names:
            if name != "*" and not _SOURCE.fullmatch(name):
                raise AccessError(
                    f"access rule: {name!r} cannot be the beginning of a source: give sources, of A-Z a-z 0-9 _ . = -"
                )
    if local and not any(rule.local for rule in access):
        raise AccessError(
            "access: no rule says what clients of the unix socket may do: add one with local: true, or listen on tls alone"
        )
    claims = {source for rule in access if not rule.controller for _, source in _claims(rule)} - {"*"}
    for short in claims:
        for long in claims:
            if long.startswith(f"{short}."):
                raise AccessError(
                    f"access: sources of {short!r} could pass for those of {long!r}, which begins with it: "
                    "give one of the rules other sources"
                )


def may_speak_for(access: tuple[AccessRule, ...], source: str, type_name: str, scope: str) -> bool:
    """Whether the rules let this source publish events of `scope`: for answers and questions, whose keys have none.

    Sources that no rule names are those of controllers: no other client may use them.
    """
    about = [
        rule
        for rule in access
        if not rule.controller and any(s == "*" or source.startswith(f"{s}.") for _, s in _claims(rule))
    ]
    return not about or any(
        not {type_name, "*"}.isdisjoint(rule.publish) and not {scope, "*"}.isdisjoint(rule.scopes)
        for rule in about
    )


def zenoh_access_control(access: tuple[AccessRule, ...]) -> dict[str, Any]:
    """The `access_control` section of Zenoh's configuration for a router with these clients."""
    rules: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    for index, rule in enumerate(access):
        own = _common_rules(f"rule-{index}", rule)
        for number, (who, sources) in enumerate(_by_subject(rule)):
            name = f"rule-{index}-{number}"
            # The kind of link too: a name in a certificate must not be what another kind of link says of itself.
            subject = {"id": name, "link_protocols": UNIX_LINKS if rule.local else SECURE_LINKS}
            subjects.append(subject if rule.local else {**subject, "cert_common_names": who})
            for_these = _publishing_rules(name, rule, sources)
            rules += for_these
            policies.append({"subjects": [name], "rules": [r["id"] for r in (*own, *for_these)]})
        rules += own
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": [policy for policy in policies if policy["rules"]],
    }


def _claims(rule: AccessRule) -> list[tuple[str, str]]:
    """Who may use which beginning of sources."""
    who = (LOCAL,) if rule.local else rule.names
    return [(name, source) for name in who for source in (rule.sources or (name,))]


def _by_subject(rule: AccessRule) -> list[tuple[list[str], tuple[str, ...]]]:
    """Names that have their sources in common, and these."""
    if rule.local or rule.sources or rule.controller:
        return [(list(rule.names), rule.sources or (LOCAL,))]
    return [([name], (name,)) for name in rule.names]


def _publishing_rules(name: str, rule: AccessRule, sources_of: tuple[str, ...]) -> list[dict[str, Any]]:
    if rule.controller or not rule.publish:
        return []
    sources = ["*" if s == "*" else f"{s}.$*" for s in sources_of]
    pairs = [(t, s) for t in rule.publish for s in sources]
    out = [f"{keys.ROOT}/*/{t}/{scope}/{s}" for t, s in pairs for scope in rule.scopes]
    replay = [f"{keys.REPLAY}/{s}/*" for s in sources]
    # The last answer to a replay carries no event.
    answers = [f"{keys.REPLAY}/{s}/{t}" for t, s in [*pairs, *((keys.END, s) for s in sources)]]
    confirm = [f"{keys.CONFIRM}/{s}/{t}" for t, s in pairs]
    ack = [f"{keys.ACK}/{s}" for s in sources]
    alive = [f"{keys.ALIVE}/{s}" for s in sources]
    return [
        _allow(f"{name}-publish", ["ingress"], _DATA, out),
        # A client that knows the subscribers sends nothing that none of them wants.
        _allow(f"{name}-interest", ["egress"], ["declare_subscriber"], out),
        _allow(f"{name}-alive", ["ingress"], ["liveliness_token"], alive),
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


def _common_rules(name: str, rule: AccessRule) -> list[dict[str, Any]]:
    """What does not depend on who of a rule's names it is."""
    if rule.controller:
        return [_allow(f"{name}-all", ["ingress", "egress"], _EVERY_MESSAGE, ["waystage/**"])]
    if not rule.read:
        return []
    wanted = [f"{keys.ROOT}/*/{t}/*/*" for t in rule.read]
    asked = [f"{root}/*/{t}" for t in rule.read for root in (keys.REPLAY, keys.JOURNAL)]
    if "*" in rule.read:
        asked.append(keys.SNAPSHOT)  # the state shows every type
    asked += [f"{keys.REPLAY}/*/{keys.END}", f"{keys.JOURNAL}/*/{keys.END}"]
    living = ["declare_liveliness_subscriber", "liveliness_query"]
    return [
        _allow(f"{name}-read", ["egress"], _DATA, wanted),
        _allow(f"{name}-subscribe", ["ingress"], ["declare_subscriber"], wanted),
        _allow(f"{name}-who", ["ingress"], living, [f"{keys.ALIVE}/*"]),
        _allow(f"{name}-there", ["egress"], ["liveliness_token", "reply"], [f"{keys.ALIVE}/*"]),
        _allow(f"{name}-ask", ["ingress"], ["query"], asked),
        _allow(f"{name}-told", ["egress"], ["reply", "declare_queryable"], asked),
    ]


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
