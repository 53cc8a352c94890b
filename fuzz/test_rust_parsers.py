"""The parsers of foreign bytes that are compiled: their property tests, with as many inputs as `make fuzz` gives the others.

`cargo test` runs the same tests with a few hundred inputs each, so that `make test` has no need of this file.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = os.environ.get("WAYSTAGE_FUZZ_EXAMPLES")
REPOSITORY = Path(__file__).parents[1]

TARGETS = (
    ("waystage-protocol", "frames in packets of the wide-area protocol", "frames"),
    ("waystage-protocol", "packets of a peer that has the keys, messages of its streams", "fuzz_"),
    ("waystage-protocol", "messages of streams", "streams::message"),
    ("waystage-wan", "SOCKS, destinations and rules of the proxy", "proxy::"),
    ("waystage-wan", "messages between the ends of a copy", "a_reader_panic"),
    ("waystage-agent", "records in memory that programs share", "foreign_bytes"),
    ("waystage-agent", "events in these records", "any_bytes"),
    ("waystage-copy", "lists of names", "names::"),
    ("waystage-copy", "journals of copies", "journal::"),
)
"""Crate, what is parsed, a part of the names of the tests."""


@pytest.mark.parametrize(
    ("crate", "what", "names"), TARGETS, ids=[f"{crate} {name}" for crate, _, name in TARGETS]
)
def test_bytes_from_elsewhere_do_no_harm(crate: str, what: str, names: str) -> None:
    if EXAMPLES is None:
        pytest.skip("cargo test runs these with fewer inputs; `make fuzz` runs them here")
    command = ["cargo", "test", "--locked", "-p", crate, names]
    environment = {**os.environ, "PROPTEST_CASES": EXAMPLES}
    environment["PATH"] += f":{Path.home() / '.cargo/bin'}"
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{what}: {done.stdout}{done.stderr}"
    ran = [line for line in done.stdout.splitlines() if line.endswith("... ok")]
    assert ran, f"no test of {crate} is called {names}"
