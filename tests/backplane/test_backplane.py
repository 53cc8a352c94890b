"""The interface: publish, subscribe, wait, test; filters, users' own types, bad bytes."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zenoh

from backplane_support import client, numbers, started, take
from harness import WAIT_S, wait_until
from waystage.backplane import (
    Backplane,
    BackplaneConfig,
    BackplaneError,
    NotConfirmed,
)
from waystage.events import Envelope, Event, EventError, JobFinished, JobStarted, StagingStarted, UnknownEvent


class ServerSlow(Event, frozen=True, kw_only=True):
    """A type a user declares."""

    server: str
    load: float = 0.0


def test_a_subscriber_gets_what_is_published_in_order(alone: Backplane) -> None:
    with alone.subscribe("JobStarted") as subscription:
        for number in range(100):
            alone.publish(started(number))
        assert numbers([subscription.get(WAIT_S) for _ in range(100)]) == list(range(100))  # type: ignore[misc]
        assert subscription.get(0) is None


def test_an_embedded_backplane_opens_no_socket_and_opens_fast() -> None:
    script = (
        "import os, time\n"
        "from waystage.backplane import Backplane\n"
        "def sockets():\n"
        "    links = [os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{f}')]\n"
        "    inodes = {l[8:-1] for l in links if l.startswith('socket:')}\n"
        "    found = [open(f'/proc/net/{n}').read() for n in ('tcp', 'tcp6', 'udp', 'udp6')]\n"
        "    return sum(row.split()[9] in inodes for text in found for row in text.splitlines()[1:])\n"
        "def opened():\n"
        "    start = time.perf_counter(); b = Backplane.open(); took = time.perf_counter() - start\n"
        "    count = sockets(); b.close()\n"
        "    return took, count\n"
        # Where it looks for others first, every time is longer; others are where the machine is busy.
        "all = [opened()]\n"
        "while all[-1][0] >= 0.05 and len(all) < 100: all.append(opened())\n"
        "print(min(took for took, _ in all), sum(count for _, count in all))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    least, sockets = done.stdout.split()
    assert sockets == "0"
    assert float(least) < 0.05


def test_several_types_and_fields_must_all_hold(alone: Backplane) -> None:
    some = alone.subscribe(["JobStarted", JobFinished])
    job = alone.subscribe({"type": ["JobStarted", "StagingStarted"], "job_id": "2"})
    both = alone.subscribe({"type": "StagingStarted", "job_id": "2", "direction": "out"})
    anything = alone.subscribe({"job_id": "2"})
    alone.publish(started(1))
    alone.publish(started(2))
    alone.publish(StagingStarted(job_id="2", direction="in"))
    alone.publish(StagingStarted(job_id="2", direction="out"))
    alone.publish(JobFinished(job_id="1"))
    found = [take(s, count) for s, count in ((some, 3), (job, 3), (both, 1), (anything, 3))]
    names = [[type(item.event).__name__ for item in items] for items in found]
    assert names == [
        ["JobStarted", "JobStarted", "JobFinished"],
        ["JobStarted", "StagingStarted", "StagingStarted"],
        ["StagingStarted"],
        ["JobStarted", "StagingStarted", "StagingStarted"],
    ]


def test_a_callback_and_a_queue_are_fed_and_a_failing_callback_goes_on(alone: Backplane) -> None:
    fed: queue.Queue[Envelope] = queue.Queue()
    called: list[Envelope] = []
    enough = threading.Event()

    def callback(item: Envelope) -> None:
        called.append(item)
        if len(called) == 3:
            enough.set()
        raise ValueError("a user's mistake")

    to_callback = alone.subscribe("JobStarted", callback)
    alone.subscribe("JobStarted", queue=fed)
    for number in range(3):
        alone.publish(started(number))
    assert numbers([fed.get(timeout=WAIT_S) for _ in range(3)]) == [0, 1, 2]
    assert enough.wait(WAIT_S)
    to_callback.close()
    assert to_callback.stats.callback_errors == 3


def test_wait_and_test_take_each_event_once(alone: Backplane) -> None:
    assert alone.test("JobStarted") is None
    assert alone.wait("JobFinished", 0.01) is None
    assert alone.watch("JobStarted") is alone.watch("JobStarted")  # what was collected is not begun anew
    alone.publish(started(1))
    alone.publish(started(2))
    alone.publish(JobFinished(job_id="1"))
    assert numbers([alone.wait("JobStarted", WAIT_S)]) == [1]  # type: ignore[list-item]
    wait_until(lambda: len(alone.watch(JobStarted)) == 1)
    second = alone.test(JobStarted)
    assert second is not None and second.event == started(2)
    assert alone.test(JobStarted) is None
    timer = threading.Timer(0.05, lambda: alone.publish(JobFinished(job_id="7")))
    alone.watch("JobFinished", job_id="7")
    timer.start()
    item = alone.wait("JobFinished", WAIT_S, job_id="7")
    timer.join()
    assert item is not None and item.event == JobFinished(job_id="7")


def test_a_users_own_type_travels_and_one_without_the_type_can_still_filter(
    router: Backplane, unix_endpoint: str
) -> None:
    script = (
        "import sys\n"
        "from waystage.backplane import Backplane, BackplaneConfig\n"
        f"b = Backplane.open(BackplaneConfig(connect=({unix_endpoint!r},)))\n"
        "s = b.subscribe({'type': 'ServerSlow', 'server': 'ost3'})\n"
        "print('ready', flush=True)\n"
        f"item = s.get({WAIT_S})\n"
        "print(type(item.event).__name__, item.event.type, item.event.body['load'], flush=True)\n"
        "b.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        own = router.subscribe(ServerSlow)

        def has_read() -> bool:
            router.publish(ServerSlow(server="ost1", load=0.1))
            router.publish(ServerSlow(server="ost3", load=0.9))
            return reader.poll() is not None

        wait_until(has_read, what="the reader's end")
        said = reader.stdout.read()
    assert said == f"{UnknownEvent.__name__} ServerSlow 0.9\n"
    item = own.get(WAIT_S)
    assert item is not None and item.event == ServerSlow(server="ost1", load=0.1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"type": 7}',
        b'{"type": "JobStarted", "source": "rogue", "seq": 1, "body": {"job_id": 5}}',
        b'{"type": "JobStarted", "source": "rogue", "seq": 1, "body": {"job_id": "", "nodes": []}}',
        b'{"type": "JobStarted", "source": "another-one", "seq": 1, "body": {"job_id": "1", "nodes": []}}',
        b'{"type": "JobFinished", "source": "rogue", "seq": 1, "body": {"job_id": "1"}}',
        b'{"type": "JobStarted", "source": "rogue", "seq": -4, "body": {"job_id": "1", "nodes": []}}',
    ],
)
def test_malformed_messages_are_counted_and_dropped(
    router: Backplane, unix_endpoint: str, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    settings = zenoh.Config()
    settings.insert_json5("mode", '"client"')
    settings.insert_json5("connect/endpoints", f'["{unix_endpoint}"]')
    subscription = router.subscribe()
    session = zenoh.open(settings)
    try:
        for _ in range(3):
            session.put(
                "waystage/v1/control/JobStarted/site/rogue",
                payload,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )
        wait_until(lambda: router.stats.malformed >= 3)
    finally:
        session.close()  # type: ignore[no-untyped-call]
    router.publish(started(1))
    item = subscription.get(WAIT_S)
    assert item is not None and item.source == router.source, "the malformed ones were not delivered"
    assert router.stats.malformed == 3
    assert sum("malformed" in record.message for record in caplog.records) == 1, "logged once a source"


def test_what_may_not_travel_is_refused_where_it_is_published(alone: Backplane) -> None:
    for job_id in ("", "x" * 10_000, "a\nb", "\x1b[2J"):
        with pytest.raises(EventError, match="job id"):
            alone.publish(JobFinished(job_id=job_id))
    assert alone.stats.published == 0
    alone.close()
    with pytest.raises(BackplaneError, match="closed"):
        alone.publish(started(1))


def test_confirm_without_a_controller_says_so(router: Backplane, unix_endpoint: str) -> None:
    with (
        client(unix_endpoint, "publisher") as publisher,
        pytest.raises(NotConfirmed, match="waystage controller"),
    ):
        publisher.publish(started(1), confirm=True, timeout=0.3)


def test_an_unreachable_endpoint_and_one_in_use_are_named(unix_endpoint: str, free_port: int) -> None:
    with pytest.raises(BackplaneError, match="cannot reach unixsock-stream/"):
        Backplane.open(BackplaneConfig(connect=(unix_endpoint,), connect_timeout_s=0.3))
    taken = f"tcp/127.0.0.1:{free_port}"
    with (
        Backplane.open(BackplaneConfig(listen=(taken,), insecure=True)),
        pytest.raises(BackplaneError, match=f"cannot listen on {taken}: is it in use"),
    ):
        Backplane.open(BackplaneConfig(listen=(taken,), insecure=True))


def test_a_socket_left_by_a_killed_process_is_no_obstacle(unix_endpoint: str) -> None:
    script = (
        "import time\nfrom waystage.backplane import Backplane, BackplaneConfig\n"
        f"b = Backplane.open(BackplaneConfig(listen=({unix_endpoint!r},)))\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "up\n"
        first.kill()
    assert Path(unix_endpoint.partition("/")[2]).exists()
    with (
        Backplane.open(BackplaneConfig(listen=(unix_endpoint,))),
        Backplane.open(BackplaneConfig(connect=(unix_endpoint,))),
    ):
        pass


def test_configuration_names_the_key_that_is_wrong() -> None:
    from waystage.backplane import config_from

    with pytest.raises(BackplaneError, match=r"site\.yaml: .*cache_events"):
        config_from({"cache_events": "many"}, "site.yaml")
    with pytest.raises(BackplaneError, match=r"site\.yaml: .*lisen"):
        config_from({"lisen": []}, "site.yaml")
    with pytest.raises(BackplaneError, match="not PROTOCOL/ADDRESS"):
        BackplaneConfig(connect=("127.0.0.1:7447",)).check()


def test_a_backplane_closes_with_a_subscriber_waiting(alone: Backplane) -> None:
    ended = threading.Event()
    subscription = alone.subscribe("JobStarted")

    def wait() -> None:
        assert subscription.get(WAIT_S) is None
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
    alone.close()
    assert ended.wait(WAIT_S / 2)


def test_the_wire_form_is_json_that_other_languages_can_write(router: Backplane) -> None:
    body = {
        "type": "JobStarted",
        "source": "agent",
        "seq": 1,
        "id": "ab",
        "body": {"job_id": "9", "nodes": ["c1"], "new_field": 1},
    }
    subscription = router.subscribe("JobStarted")
    router._session.put("waystage/v1/control/JobStarted/node1/agent", msgspec.json.encode(body))
    item = subscription.get(WAIT_S)
    assert item is not None and item.event == JobStarted(job_id="9", nodes=("c1",))
