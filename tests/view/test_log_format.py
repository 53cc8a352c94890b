"""Logs of daemons as JSON lines on request."""

from __future__ import annotations

import io
import json
import logging

import pytest

from waystage.cli import service


@pytest.fixture(autouse=True)
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._Format, "json", True)


def test_each_record_is_one_object_a_line_also_with_a_traceback() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(service._JsonLines())
    log = logging.getLogger("waystage.test")
    log.addHandler(handler)
    try:
        log.warning("switch %s\nis gone", "edge1")
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("failed")
    finally:
        log.removeHandler(handler)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "warning",
        "waystage.test",
        "switch edge1\nis gone",
    )
    assert "ValueError: why" in second["exception"]


def test_lines_of_a_peer_cannot_make_a_second_object() -> None:
    out = io.StringIO()
    service.write_line(out, 'user "ada"\n{"level": "forged"}')
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["message"].startswith('user "ada"')
