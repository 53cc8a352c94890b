"""A run in the lab, watched in a real browser from start to end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browser_support import needs_browser, opened, rgb
from harness import command, measuring
from waystage.experiment import results
from waystage.experiment.figures import CLASS_COLOURS
from waystage.view.recorded import load
from waystage.worlds.lab.resources import LabResources

pytestmark = pytest.mark.lab

LAB = "t_viewed"

EXPERIMENT = f"""\
name: viewed
topology: paper
policies: [link-separation]
sets: 1
jobs:
  count: 2
  nodes: 3
  placement: [[c4, c1, c5], [c6, c2, c3]]
  arrivals: {{distribution: fixed, mean_s: 2.0}}
  stage_in: {{bytes: 25 MB}}
  compute: {{program: alltoall, iterations: 40, message: 400 kB}}
  stage_out: {{bytes: 25 MB}}
limits: {{staging_s: 60, compute_s: 120}}
lab: {{name: {LAB}}}
"""

KEEP = """() => {
  const [links, bars] = [(window.links = {}), (window.bars = {})];
  setInterval(() => {
    waystage.graph.cy?.edges().forEach((edge) => {
      const of = (links[edge.id()] ??= {});
      for (const name of ["mpi", "staging", "io", "wan"])
        if (edge.hasClass(name)) of[name] = edge.style("line-color");
    });
    for (const group of document.querySelectorAll("#gantt g")) {
      const [job, state] = group.getAttribute("aria-label").split(/, (.*)/);
      const seen = (bars[job] ??= []);
      if (seen.at(-1) !== state) seen.push(state);
    }
  }, 20);
}"""
"""Keeps the colours that links had for each class, and in which order each job's states were shown."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = LabResources(LAB).anything_left
    if left:
        LabResources(LAB).remove_all(unmount_netns=False)
    assert not left


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the page, and the run."""
    (folder / "viewed.yaml").write_text(EXPERIMENT)
    words = command("run", "viewed.yaml", "--on", "lab", "--out", "out", "--view", "127.0.0.1:0")
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield next(line.split()[1] for line in process.stderr if line.startswith("open ")), process
    finally:
        # As with Ctrl-C, so that the lab is taken down.
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=120)


@needs_browser
def test_a_lab_run_is_watched_from_start_to_end(browser: Any, tmp_path: Path) -> None:
    # What a page shows in between is seen as long as the browser keeps up with the run.
    with measuring(), running(tmp_path) as (link, process), opened(browser, link) as page:
        page.get_by_text("run in progress", exact=True).wait_for()
        page.evaluate(KEEP)
        page.get_by_text("the run has ended", exact=True).wait_for()
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (0, 7), errors  # 7: too busy a machine for the figures to count
        assert page.locator("#notice").inner_text().startswith("The run has ended; `waystage view`")
        # Tables are drawn twice a second.
        page.wait_for_function("() => Object.values(window.bars).every((seen) => seen.at(-1) === 'ended')")
        bars, links = page.evaluate("() => [window.bars, window.links]")
        assert set(bars) == {"job link-separation-1-1", "job link-separation-1-2"}
        for states in bars.values():
            assert states[0] != "ended" and states[-1] == "ended"
            assert any("stages" in state for state in states)
        assert page.locator("#gantt rect.run-bar").count() == 2
        assert page.locator("#gantt rect.staging-bar").count() == 4
        colours = {name: rgb(colour) for name, colour in CLASS_COLOURS.items()}
        for seen in links.values():
            assert seen.items() <= colours.items()
        storage = next(seen for link, seen in links.items() if link.startswith("storage:"))
        assert "staging" in storage
        cores = {link.split("-")[1].split(":")[0] for link, seen in links.items() if "mpi" in seen}
        assert {"core1", "core2"} <= cores, "MPI leaves the path of the staging"
        page.locator("#decisions-list").get_by_text("link-separation").first.wait_for()
    folder = tmp_path / "out"
    assert [job.status for job in results.load(folder).jobs] == ["done", "done"]
    # What was recorded is shown again, topology included.
    assert load(folder).model.state.topology is not None
