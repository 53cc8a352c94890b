"""The page of the view in a real browser: what a user sees, on a large screen and on a phone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browser_support import needs_browser, opened, rgb
from view_support import Site
from waystage import events
from waystage.events import Envelope, Event
from waystage.experiment.figures import CLASS_COLOURS
from waystage.interconnect.generate import leaf_spine
from waystage.view.feed import About, Feed
from waystage.view.serving import Options, Serving

STYLE = Path(__file__).parents[2] / "python/waystage/view/page/view.css"


@contextmanager
def served(*told: Event) -> Iterator[tuple[str, Any]]:
    feed = Feed(About(title="test", mode="live"))

    def tell(*more: Event) -> None:
        now = time.time_ns()
        feed.apply(
            Envelope(event=event, event_id=f"{now}-{n}", source="site.1", time_ns=now)
            for n, event in enumerate(more)
        )

    tell(*told)
    serving = Serving(feed, time.time_ns, Options(listen="127.0.0.1:0"))
    with serving.in_thread():
        yield serving.link, tell


@needs_browser
def test_a_site_is_watched_while_its_controller_dies_and_comes_back(browser: Any, site: Site) -> None:
    with opened(browser, f"{site.address}#token={site.token}") as page:
        page.get_by_text("controller site-1", exact=False).first.wait_for()
        assert "token" not in page.url
        site.notify("job-start", "17", "--nodes", "c1,c2")
        site.notify("staging-start", "17")
        page.locator("#gantt").get_by_text("17", exact=True).wait_for()
        page.locator("#decisions-list").get_by_text("link-separation").first.wait_for()
        site.controller.send_signal(signal.SIGKILL)
        site.controller.wait()
        page.locator("#connection").get_by_text("controller site-1 is gone").wait_for()
        page.locator("#controllers-list").get_by_text("✕ gone").wait_for()
        site.control()
        page.locator("#controllers-list").get_by_text("● here").wait_for()
        page.locator("#connection").get_by_text("live", exact=True).wait_for()


@needs_browser
def test_a_link_takes_the_colour_of_the_class_that_moves_most_and_says_it_in_words(browser: Any) -> None:
    topology = leaf_spine(4, 2, 2)
    link = topology.switch_links[0]

    def use(**by: int) -> events.LinkUse:
        port = events.PortUse(node=link.a, port=link.a_port, bytes=sum(by.values()), by_class=by)  # type: ignore[arg-type]
        return events.LinkUse(interval_ns=1_000_000_000, ports=(port,))

    colour = "id => waystage.graph.cy.getElementById(id).style('line-color')"
    with (
        served(events.TopologyChanged(topology=topology)) as (link_to, tell),
        opened(browser, link_to) as page,
    ):
        page.wait_for_function("() => waystage.graph.shape")
        seen = []
        for traffic in ("mpi", "staging", "io"):
            tell(use(**{traffic: 5_000_000}))
            page.wait_for_function(
                "([id, name]) => waystage.graph.cy.getElementById(id).hasClass(name)",
                arg=[link.name, traffic],
            )
            seen.append(page.evaluate(colour, link.name))
            page.locator("#links-table").get_by_text(f"{traffic} 40.0 Mbit/s").wait_for()
        assert [rgb(CLASS_COLOURS[name]) for name in ("mpi", "staging", "io")] == seen
        tell(events.LinkDown(link=link.name))
        page.locator("#links-table").get_by_text("✕ down").wait_for()


@needs_browser
def test_names_of_jobs_are_text_and_never_markup(browser: Any) -> None:
    name = "<img src=x onerror=alert(1)>\"'&amp;<script>alert(2)</script>"
    told = [
        events.JobStarted(job_id=name, nodes=(name,), user=name),
        events.FlowStarted(flow_id=name, traffic="io", engine=name, job_id=name, user=name),
        events.Decided(policy=name, cause_id="x", actions=(), reason=name),
        events.WidePathDeclared(peer=name, host=name, rate_bps=1),
    ]
    with served() as (link, tell), opened(browser, link) as page:
        tell(*told)
        page.locator("#flows-table").get_by_text("<img src=x", exact=False).first.wait_for()
        # By keyboard: the middle of a job that has just begun, where a click goes, may lie beside its short bar.
        page.locator("#gantt g").first.focus()
        page.keyboard.press("Enter")
        page.locator("#detail").get_by_text("<img src=x", exact=False).first.wait_for()
        assert page.locator("main img, main script").count() == 0


@needs_browser
def test_a_page_without_the_token_says_what_to_do(browser: Any) -> None:
    with served() as (link, _), opened(browser, link.partition("#")[0]) as page:
        page.get_by_text("open the whole address that `waystage view` printed", exact=False).wait_for()
        page.goto(link.partition("#")[0] + "#token=wrong")
        page.reload()
        page.get_by_text("The token is wrong", exact=False).wait_for()


@needs_browser
def test_a_page_of_another_origin_reads_nothing(browser: Any) -> None:
    with served(events.JobStarted(job_id="secret", nodes=())) as (link, _), served() as (other, _tell):
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.locator("#gantt").get_by_text("secret", exact=True).wait_for()
        page.goto(other.replace("127.0.0.1", "localhost"))
        address = link.partition("#")[0]
        read = "a => fetch(a, {credentials: 'include'}).then(r => r.text()).catch(e => 'refused')"
        assert page.evaluate(read, address + "api/about") == "refused"
        context.close()


@needs_browser
def test_a_thousand_hosts_are_drawn_by_edge_switch_and_listed_on_request(browser: Any) -> None:
    topology = leaf_spine(32, 32, 8, storage_hosts=0)
    port = topology.attachment[topology.hosts[5].name]
    use = events.PortUse(node=port[0], port=port[1], bytes=1_250_000, by_class={"io": 1_250_000})
    told = [events.TopologyChanged(topology=topology), events.LinkUse(interval_ns=10**9, ports=(use,))]
    with served(*told) as (link, _), opened(browser, link) as page:
        page.wait_for_function("() => waystage.graph.shape")
        assert page.evaluate("() => waystage.graph.cy.nodes().length") == 32 + 8 + 32
        page.get_by_text("1024 hosts, drawn by edge switch", exact=False).wait_for()
        page.evaluate("id => { waystage.graph.cy.getElementById(id).emit('tap'); }", f"{port[0]}:hosts")
        page.locator("#detail").get_by_text(
            f"{topology.hosts[5].name}: sends 0 bit/s, receives 10.0 Mbit/s"
        ).wait_for()


@needs_browser
def test_time_goes_back_and_forth_and_to_now(browser: Any) -> None:
    with served(events.JobStarted(job_id="first", nodes=())) as (link, tell), opened(browser, link) as page:
        gantt = page.locator("#gantt")
        gantt.get_by_text("first", exact=True).wait_for()
        begun = page.evaluate("() => waystage.live.t")
        page.wait_for_function("t => Date.now() > t + 2500", arg=begun)
        tell(events.JobStarted(job_id="second", nodes=()))
        gantt.get_by_text("second", exact=True).wait_for()
        page.reload()
        gantt.get_by_text("second", exact=True).wait_for()
        for _ in range(2):
            page.locator("#slider").fill("0")
            gantt.get_by_text("second", exact=True).wait_for(state="detached")
            page.get_by_text("not now", exact=False).wait_for()
            page.locator("#live").click()
            gantt.get_by_text("second", exact=True).wait_for()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, scheme: str) -> None:
    told = [
        events.TopologyChanged(topology=leaf_spine(4, 4, 2)),
        events.JobStarted(
            job_id="a-job-with-a-long-name-that-does-not-end" * 4, nodes=("c1",), user="u" * 60
        ),
        events.FlowStarted(flow_id="node1:" + "f" * 80, traffic="staging", engine="copy", bytes=10**9),
    ]
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "color_scheme": scheme}
    with served(*told) as (link, _), opened(browser, link, **phone) as page:
        page.locator("#flows-table").get_by_text("staging").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        assert page.evaluate("() => document.documentElement.dataset.theme") == scheme


@needs_browser
def test_it_is_used_with_the_keyboard_alone(browser: Any) -> None:
    with served(events.JobStarted(job_id="17", nodes=("c1",))) as (link, _), opened(browser, link) as page:
        page.locator("#gantt").get_by_text("17", exact=True).wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.className") == "skip"
        page.locator("#gantt g").first.focus()
        page.keyboard.press("Enter")
        page.locator("#detail").get_by_text("runs").first.wait_for()
        page.keyboard.press("Escape")
        page.locator("#detail").wait_for(state="hidden")


# -- without a browser --------------------------------------------------------------------------------


def themes() -> list[dict[str, str]]:
    text = STYLE.read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", text)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks[:2])
    return [light, light | dark]


def luminance(colour: str) -> float:
    """Relative, of WCAG 2.1."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_classes_have_the_colours_of_the_reports() -> None:
    for theme in themes():
        assert {name: theme[name] for name in ("mpi", "staging", "io", "wan")} == {
            name: CLASS_COLOURS[name] for name in ("mpi", "staging", "io", "wan")
        }


def test_text_has_the_contrast_of_wcag_aa() -> None:
    for theme in themes():
        for ink in ("ink", "soft", "bad", "good", "accent"):
            for ground in ("bg", "card", "hover"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        for sign in ("edge", "soft"):
            assert contrast(theme[sign], theme["card"]) >= 3
