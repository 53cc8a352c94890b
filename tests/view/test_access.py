"""Who may read the view."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystage.view.access import AccessError, Gate, token_from

TOKEN = "a-token-of-the-test"


@pytest.fixture
def gate() -> Gate:
    return Gate(TOKEN, ("view.example.org",))


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8077", "localhost:9000", "[::1]:8077", "view.example.org", "127.0.0.9"]
)
def test_our_own_names_are_answered(gate: Gate, host: str) -> None:
    assert gate.check_source({"Host": host}) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example.org", "10.0.0.1:8077", "localhost.evil.org", "127.0.0.1.evil.org"]
)
def test_another_name_of_this_address_is_refused(gate: Gate, host: str) -> None:
    refusal = gate.check_source({"Host": host})
    assert refusal is not None and refusal.status == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.org", "null", "https://localhost:1", "http://localhost:2", ""]
)
def test_a_page_of_another_origin_is_refused(gate: Gate, origin: str) -> None:
    refusal = gate.check_source({"Host": "localhost:1", "Origin": origin})
    assert refusal is not None and refusal.status == 403


def test_a_page_of_another_site_is_refused_and_a_link_there_opens_the_page(gate: Gate) -> None:
    foreign = {"Host": "localhost:1", "Sec-Fetch-Site": "cross-site"}
    assert gate.check_source(foreign) is not None
    assert gate.check_source(foreign | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}) is None
    assert gate.check_source(foreign | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}) is not None


def test_only_the_token_and_the_cookie_open_it(gate: Gate) -> None:
    assert gate.check_reader("", f"Bearer {TOKEN}") is None
    assert gate.check_reader(gate.session, "") is None
    for cookie, authorization in (
        ("", ""),
        (TOKEN, ""),
        ("", TOKEN),
        ("", "Bearer \udcff"),
        ("é", "Basic x"),
    ):
        refusal = gate.check_reader(cookie, authorization)
        assert refusal is not None and refusal.status == 401 and TOKEN not in refusal.reason


def test_a_token_file_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = token_from(path)
    assert token_from(path) == first and path.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_others_read_or_that_is_weak_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("short\n")
    path.chmod(0o600)
    with pytest.raises(AccessError, match="at least 16"):
        token_from(path)
    path.write_text("long enough but two words of text\n")
    with pytest.raises(AccessError, match="one word"):
        token_from(path)
    path.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        token_from(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(AccessError):
        token_from(link)
