"""The parsers of foreign bytes that are compiled: their property tests, with as many inputs as `make fuzz` gives the others.

`cargo test` runs the same tests with a few hundred inputs each, so that `make test` has no need of this file. Which they are:
`parser_list.py`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from parser_list import PARSERS

EXAMPLES = os.environ.get("WAYSTAGE_FUZZ_EXAMPLES")
REPOSITORY = Path(__file__).parents[1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("file", sorted(PARSERS))
def test_bytes_from_elsewhere_do_no_harm(file: str) -> None:
    if EXAMPLES is None:
        pytest.skip("cargo test runs these with fewer inputs; `make fuzz` runs them here")
    what, names = PARSERS[file]
    crate = f"waystage-{file.split('/')[1]}"
    command = ["cargo", "test", "--locked", "-p", crate, "--", *names]
    environment = {**os.environ, "PROPTEST_CASES": EXAMPLES}
    environment["PATH"] += f":{Path.home() / '.cargo/bin'}"
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{what}: {done.stdout}{done.stderr}"
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.endswith("... ok")]
    for name in names:
        assert any(ran.split("::")[-1] == name for ran in passed), f"{what}: {name} of {crate} was not run"
