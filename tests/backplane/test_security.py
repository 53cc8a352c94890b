"""Mutual TLS and access rights, with real certificates and separate sessions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Authority
from harness import WAIT_S, wait_until
from waystage.backplane import (
    AccessRule,
    Backplane,
    BackplaneConfig,
    BackplaneError,
    NotConfirmed,
    Subscription,
    Tls,
    wire,
)
from waystage.backplane.access import check_access
from waystage.backplane.config import config_from, load_config
from waystage.backplane.outbox import ReplayRequest
from waystage.controllers import GlobalController
from waystage.controllers.relay import CONTROLLERS_OWN
from waystage.events import Envelope, JobFinished, JobStarted, LinkDown, encode
from waystage.policies.base import load_policy

Certify = Callable[[str], Tls]

RULES = (
    AccessRule(names=("controller.site",), controller=True),
    AccessRule(names=("scheduler.site",), publish=("JobStarted", "JobFinished")),
    AccessRule(names=("watcher.site",), read=("JobStarted",)),
    AccessRule(names=("operator.site",), publish=("*",), read=("*",)),
)


@pytest.fixture
def certify(tmp_path: Path) -> Certify:
    authority = Authority(tmp_path)

    def make(name: str) -> Tls:
        issued = authority.issue(name, "127.0.0.1", "localhost")
        return Tls(ca=authority.ca, certificate=issued.certificate, key=issued.key)

    return make


@pytest.fixture
def endpoint(free_port: int) -> str:
    return f"tls/127.0.0.1:{free_port}"


def _router(endpoint: str, tls: Tls, access: tuple[AccessRule, ...] = RULES) -> Backplane:
    return Backplane.open(BackplaneConfig(name="router", listen=(endpoint,), tls=tls, access=access))


def _client(endpoint: str, tls: Tls, name: str = "") -> Backplane:
    return Backplane.open(BackplaneConfig(name=name, connect=(endpoint,), tls=tls))


def _job(number: int) -> JobStarted:
    return JobStarted(job_id=str(number), nodes=("c1",))


def test_certificates_of_the_site_let_in_and_events_pass(certify: Certify, endpoint: str) -> None:
    with (
        _router(endpoint, certify("controller.site")) as router,
        _client(endpoint, certify("scheduler.site")) as scheduler,
        _client(endpoint, certify("watcher.site")) as watcher,
    ):
        at_router, at_watcher = router.subscribe("JobStarted"), watcher.subscribe("JobStarted")
        _until_seen(scheduler, at_watcher)
        assert at_router.get(WAIT_S) is not None


def test_another_authority_is_refused(certify: Certify, endpoint: str, tmp_path: Path) -> None:
    issued = Authority(tmp_path / "foreign").issue("controller.site", "127.0.0.1")
    stolen = Tls(ca=str(tmp_path / "ca.pem"), certificate=issued.certificate, key=issued.key)
    config = BackplaneConfig(name="x", connect=(endpoint,), tls=stolen, connect_timeout_s=1.0)
    with _router(endpoint, certify("controller.site")):
        with pytest.raises(BackplaneError, match=r"controller\.site\.pem cannot be used with .*ca\.pem"):
            Backplane.open(config)
        with pytest.raises(BackplaneError, match="certificates"):
            wire.open_session(config)  # one that does not check its own certificate


def test_no_certificate_is_refused(certify: Certify, endpoint: str) -> None:
    plain = endpoint.replace("tls/", "tcp/")
    with _router(endpoint, certify("controller.site")), pytest.raises(BackplaneError, match="cannot reach"):
        Backplane.open(BackplaneConfig(connect=(plain,), connect_timeout_s=1.0, insecure=True))


def test_a_client_without_rights_can_neither_read_nor_publish(certify: Certify, endpoint: str) -> None:
    with (
        _router(endpoint, certify("controller.site")) as router,
        _client(endpoint, certify("operator.site")) as operator,
        _client(endpoint, certify("stranger.site")) as stranger,
    ):
        at_router = router.subscribe(None)
        at_operator = operator.subscribe(None)
        at_stranger = stranger.subscribe(None)
        assert operator.source.startswith("operator.site.")
        stranger.publish(_job(1))
        _until_seen(operator, at_operator, 100)
        operator.publish(JobFinished(job_id="last"))
        seen = [at_router.get(WAIT_S)]
        while seen[-1] is not None and not isinstance(seen[-1].event, JobFinished):
            seen.append(at_router.get(WAIT_S))
        sources = {item.source.split(".")[0] for item in seen if item is not None}
        assert sources == {"operator"}, "sources begin with the name in the certificate"
        own = at_stranger.get(WAIT_S)
        assert own is not None and own.source == stranger.source
        assert at_stranger.get(0.5) is None, "it read what others publish"
        with pytest.raises(BackplaneError, match="no controller answered"):
            stranger.snapshot(timeout=0.5)


def test_rights_hold_for_each_type_by_itself(certify: Certify, endpoint: str) -> None:
    with (
        _router(endpoint, certify("controller.site")) as router,
        _client(endpoint, certify("operator.site")) as operator,
        _client(endpoint, certify("watcher.site")) as watcher,
    ):
        everything, started = watcher.subscribe("JobFinished"), watcher.subscribe("JobStarted")
        at_router = router.subscribe("JobFinished")
        operator.publish(JobFinished(job_id="1"))
        _until_seen(operator, started)
        assert at_router.get(WAIT_S) is not None
        assert everything.get(0.5) is None
        watcher.publish(JobFinished(job_id="2"))
        assert at_router.get(0.5) is None


def test_a_notification_is_confirmed_through_the_rules(
    certify: Certify, endpoint: str, tmp_path: Path
) -> None:
    with _router(endpoint, certify("controller.site")) as router:
        with (
            GlobalController(load_policy("null"), [], router, tmp_path / "state") as controller,
            _client(endpoint, certify("scheduler.site")) as scheduler,
            _client(endpoint, certify("stranger.site")) as stranger,
            _client(endpoint, certify("operator.site")) as operator,
        ):
            scheduler.publish(_job(1), confirm=True, timeout=60.0)
            with pytest.raises(NotConfirmed):
                stranger.publish(_job(2), confirm=True, timeout=1.0)
            assert list(controller.snapshot().jobs) == ["1"]
            assert operator.snapshot().events == 1
            scheduler.close()
            everything = ReplayRequest(since_ns=0)
            answer = operator.replay(scheduler.source, ("JobStarted",), everything)
            assert answer is not None and len(answer[0]) == 1, "from the journal, since its publisher is gone"
            assert stranger.replay(scheduler.source, ("JobStarted",), everything) is None


def test_rights_to_one_type_give_no_way_round_to_another(
    certify: Certify, endpoint: str, tmp_path: Path
) -> None:
    """A confirmation and a replay carry events too, so rights must hold there as well."""
    with _router(endpoint, certify("controller.site")) as router:
        with (
            GlobalController(load_policy("null"), [], router, tmp_path / "state") as controller,
            _client(endpoint, certify("scheduler.site")) as scheduler,
        ):
            scheduler.publish(_job(1), confirm=True, timeout=60.0)
            with pytest.raises(NotConfirmed):
                scheduler.publish(LinkDown(link="a:1-b:1"), confirm=True, timeout=1.5)
            scheduler.publish(_job(2), confirm=True, timeout=60.0)  # the hole before it is asked for again
            state = controller.snapshot()
            assert list(state.jobs) == ["1", "2"]
            assert state.down_links == {}


def test_a_name_may_be_reserved(certify: Certify, endpoint: str) -> None:
    rules = (
        AccessRule(names=("controller.site",), controller=True),
        AccessRule(names=("scheduler.site",), publish=("JobStarted",), sources=("slurm",)),
    )
    tls = certify("scheduler.site")
    with (
        _router(endpoint, certify("controller.site"), rules) as router,
        _client(endpoint, tls, "slurm") as allowed,
        _client(endpoint, tls, "other") as refused,
    ):
        subscription = router.subscribe("JobStarted")
        refused.publish(_job(1))
        allowed.publish(_job(2))
        item = subscription.get(WAIT_S)
        assert item is not None and item.event == _job(2)
        assert subscription.get(0.3) is None


@pytest.mark.parametrize(
    "endpoint", ["tcp/0.0.0.0:7447", "tcp/[::]:7447", "udp/10.0.0.1:7447", "tcp/myhost:7447"]
)
def test_listening_beyond_this_machine_without_tls_is_refused(endpoint: str) -> None:
    with pytest.raises(BackplaneError, match="--insecure"):
        BackplaneConfig(listen=(endpoint,)).check()
    BackplaneConfig(listen=(endpoint,), insecure=True).check()


@pytest.mark.parametrize("endpoint", ["tcp/127.0.0.1:7447", "tcp/[::1]:7447", "udp/localhost:7447"])
def test_a_loopback_address_lets_in_any_user_of_the_machine_and_is_refused(endpoint: str) -> None:
    for side in ("listen", "connect"):
        with pytest.raises(BackplaneError, match=r"unixsock-stream//run/waystage/backplane\.sock"):
            BackplaneConfig(**{side: (endpoint,)}).check()  # type: ignore[arg-type]
    BackplaneConfig(listen=(endpoint,), insecure=True).check()


def test_access_rules_that_cannot_distinguish_clients_are_refused(certify: Certify) -> None:
    with pytest.raises(BackplaneError, match="certificates"):
        BackplaneConfig(listen=("unixsock-stream//run/w/b.sock",), access=RULES).check()
    mixed = ("tls/127.0.0.1:7447", "tcp/127.0.0.1:7448")
    with pytest.raises(BackplaneError, match="authenticated clients"):
        BackplaneConfig(listen=mixed, access=RULES, tls=certify("controller.site"), insecure=True).check()
    mixed = ("tls/127.0.0.1:7447", "unixsock-stream//run/w/b.sock")
    with pytest.raises(BackplaneError, match="local: true"):
        BackplaneConfig(listen=mixed, access=RULES, tls=certify("controller.site")).check()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((AccessRule(publish=("JobStarted",)),), "names of certificates"),
        ((AccessRule(names=("a",), local=True),), "names of certificates"),
        ((AccessRule(names=("node",)), AccessRule(names=("node.1",))), "could pass for"),
        ((AccessRule(names=("a b",)),), "give sources"),
        ((AccessRule(names=("a",), sources=("$*",)),), "give sources"),
        ((AccessRule(names=("local",)),), "those of unix sockets"),
    ],
)
def test_rules_by_which_one_could_pass_for_another_are_refused(
    certify: Certify, rules: tuple[AccessRule, ...], said: str
) -> None:
    with pytest.raises(BackplaneError, match=said):
        BackplaneConfig(listen=("tls/127.0.0.1:7447",), access=rules, tls=certify("c")).check()


def test_no_certificate_may_publish_in_the_name_of_another(certify: Certify, endpoint: str) -> None:
    """Also not one that the same rule names."""
    rules = (
        AccessRule(names=("controller.site",), controller=True),
        AccessRule(names=("node1.site", "node2.site"), publish=("JobStarted",)),
    )
    with (
        _router(endpoint, certify("controller.site"), rules) as router,
        _client(endpoint, certify("node1.site")) as honest,
        _client(endpoint, certify("node2.site"), "node1.site") as forger,
        _client(endpoint, certify("node2.site"), "global") as controller_to_be,
        _client(endpoint, certify("node2.site"), "node1.site.x") as longer,
    ):
        subscription = router.subscribe(None)
        for number, liar in enumerate((forger, controller_to_be, longer)):
            liar.publish(_job(number))
        honest.publish(_job(9))
        item = subscription.get(WAIT_S)
        assert item is not None and item.event == _job(9)
        assert subscription.get(0.5) is None


def test_a_key_for_many_sources_acknowledges_nothing(unix_endpoint: str, tmp_path: Path) -> None:
    """The journal of one event of `*` would free the caches of every publisher of the site."""
    with (
        Backplane.open(BackplaneConfig(name="router", listen=(unix_endpoint,))) as router,
        Backplane.open(BackplaneConfig(name="honest", connect=(unix_endpoint,))) as honest,
        Backplane.open(BackplaneConfig(name="liar", connect=(unix_endpoint,))) as liar,
    ):
        honest.publish(_job(1))
        acknowledged = honest._outbox.acknowledged
        with GlobalController(load_policy("null"), [], router, tmp_path / "state") as controller:
            honest.publish(_job(2), confirm=True, timeout=60.0)
            for source in ("*", "$*", "**"):
                fake = Envelope(event=_job(7), event_id="x", source=source, seq=10**6, time_ns=1)
                with contextlib.suppress(BackplaneError):
                    wire.put(liar._session, f"waystage/v1/control/JobStarted/site/{source}", encode(fake), 0)
                with contextlib.suppress(BackplaneError):
                    for _ in wire.ask(
                        liar._session, f"waystage/v1/confirm/{source}/JobStarted", encode(fake), 0.3, b"0"
                    ):
                        pytest.fail("it was confirmed")
            wait_until(lambda: router.stats.malformed > 0, what="a refused key")
            honest.publish(_job(3), confirm=True, timeout=60.0)
            assert sorted(controller.snapshot().jobs) == ["1", "2", "3"]
        assert acknowledged == 0 and honest._outbox.acknowledged <= 3


def test_a_certificate_that_cannot_be_read_is_named(certify: Certify) -> None:
    tls = Tls(ca="/nowhere/ca.pem", certificate="/nowhere/c.pem", key="/nowhere/k.pem")
    with pytest.raises(BackplaneError, match=r"/nowhere/ca\.pem"):
        BackplaneConfig(connect=("tls/127.0.0.1:7447",), tls=tls).check()


def _until_seen(publisher: Backplane, subscription: Subscription, first: int = 0) -> None:
    """Publish until the subscription, which takes a moment to be known across the network, gets one."""
    numbers = itertools.count(first)

    def seen() -> bool:
        publisher.publish(_job(next(numbers)))
        return subscription.get(0.2) is not None

    wait_until(seen, what="an event at the subscriber")


SAMPLES = ("global", "node", "client")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_give_each_role_what_it_needs_and_no_more(repository: Path, name: str) -> None:
    values = load_config(repository / "deploy" / "zenoh" / f"{name}.yaml")
    own = values if name == "client" else values["backplane"]
    config = config_from({k: v for k, v in own.items() if k != "tls"}, name)
    check_access(config.access, local=bool(config.listen_sockets))
    controllers_own = set(CONTROLLERS_OWN)
    for rule in config.access:
        assert "*" not in rule.publish and "*" not in rule.sources
        assert rule.controller or not set(rule.publish) & controllers_own, "only the controller says these"
    assert not values.get("relay") or "*" not in values["relay"]["up"]


def test_local_clients_have_separate_rights_beside_certificates(
    certify: Certify, endpoint: str, unix_endpoint: str
) -> None:
    rules = (
        AccessRule(names=("controller.site",), controller=True),
        AccessRule(names=("scheduler.site",), publish=("JobStarted",)),
        AccessRule(local=True, publish=("JobFinished",)),
    )
    config = BackplaneConfig(
        name="router", listen=(endpoint, unix_endpoint), tls=certify("controller.site"), access=rules
    )
    with (
        Backplane.open(config) as router,
        _client(endpoint, certify("scheduler.site")) as scheduler,
        Backplane.open(BackplaneConfig(connect=(unix_endpoint,))) as local,
        Backplane.open(BackplaneConfig(connect=(unix_endpoint,), name="scheduler.site")) as forger,
    ):
        subscription = router.subscribe(None)
        local.publish(_job(1))
        forger.publish(JobFinished(job_id="2"))
        forger.publish(LinkDown(link="a:1-b:1"))
        local.publish(JobFinished(job_id="3"))
        item = subscription.get(WAIT_S)
        assert item is not None and item.event == JobFinished(job_id="3")
        scheduler.publish(_job(4))
        item = subscription.get(WAIT_S)
        assert item is not None and item.event == _job(4)
        assert subscription.get(0.3) is None


def test_a_certificate_without_rights_is_named_in_the_log(
    certify: Certify, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with _router(endpoint, certify("controller.site")), _client(endpoint, certify("stranger.site")):
        wait_until(lambda: "the certificate of 'stranger.site': no access rule" in caplog.text)


def test_a_publisher_whom_the_rules_refuse_learns_the_reason(certify: Certify, endpoint: str) -> None:
    with (
        _router(endpoint, certify("controller.site")),
        _client(endpoint, certify("watcher.site")) as watcher,
        pytest.raises(NotConfirmed, match=r"this certificate publish JobStarted as watcher\.site"),
    ):
        watcher.publish(_job(1), confirm=True, timeout=0.3)
