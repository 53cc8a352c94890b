"""The view over TLS and mutual TLS: who may connect at all; the token is asked for in any case."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from certificates import Authority, Issued
from harness import WAIT_S
from waystage import events
from waystage.events import Envelope
from waystage.view.feed import About, Feed
from waystage.view.serving import Options, Serving, ServingError

TOKEN = "a-token-of-the-test"


@contextmanager
def serve(own: Issued, ca: str | None = None) -> Iterator[Serving]:
    feed = Feed(About(title="test", mode="live"))
    feed.apply([Envelope(event=events.JobStarted(job_id="7", nodes=("c1",)), event_id="1", time_ns=1)])
    options = Options(
        listen="127.0.0.1:0",
        names=("localhost",),
        token=TOKEN,
        tls_certificate=Path(own.certificate),
        tls_key=Path(own.key),
        tls_ca=None if ca is None else Path(ca),
    )
    serving = Serving(feed, time.time_ns, options)
    with serving.in_thread():
        yield serving


def trusting(authority: Authority, own: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def ask(
    serving: Serving,
    context: ssl.SSLContext,
    path: str = "/api/about",
    token: str = TOKEN,
    method: str = "GET",
) -> tuple[int, http.client.HTTPMessage, bytes]:
    port = int(serving.address.rstrip("/").rpartition(":")[2])
    with closing(
        http.client.HTTPSConnection("localhost", port, timeout=WAIT_S, context=context)
    ) as connection:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, TOKEN if method == "POST" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, b"" if path == "/api/frames" else answer.read()


@pytest.fixture
def site(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "site")


def test_over_tls_a_page_is_read_with_the_token_and_its_cookie_goes_nowhere_else(site: Authority) -> None:
    with serve(site.issue("view", "localhost")) as serving:
        assert serving.link == f"{serving.address}#token={TOKEN}" and serving.address.startswith(
            "https://localhost:"
        )
        status, _, body = ask(serving, trusting(site))
        assert status == 200 and json.loads(body)["title"] == "test"
        status, headers, _ = ask(serving, trusting(site), "/api/frames")
        assert status == 200 and headers["Content-Type"] == "text/event-stream"
        assert ask(serving, trusting(site), token="")[0] == 401
        status, headers, _ = ask(serving, trusting(site), "/api/session", "", "POST")
        assert status == 204
        assert {"Secure", "HttpOnly", "SameSite=Strict"} <= {
            p.strip() for p in headers["Set-Cookie"].split(";")
        }


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_page_that_does_not_trust_the_certificate_or_speaks_no_tls_gets_nothing(
    site: Authority, tmp_path: Path
) -> None:
    with serve(site.issue("view", "localhost")) as serving:
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(serving, trusting(Authority(tmp_path / "other")))
        port = int(serving.address.rstrip("/").rpartition(":")[2])
        with closing(http.client.HTTPConnection("localhost", port, timeout=WAIT_S)) as plain:
            with pytest.raises((http.client.HTTPException, OSError)):
                plain.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
                plain.getresponse()
        old = trusting(site)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError)):
            ask(serving, old)
        assert ask(serving, trusting(site))[0] == 200


def test_with_mutual_tls_only_certificates_of_the_site_connect_and_still_need_the_token(
    site: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    with serve(site.issue("view", "localhost"), site.ca) as serving:
        assert ask(serving, trusting(site, site.issue("ada")))[0] == 200
        assert ask(serving, trusting(site, site.issue("ada")), token="")[0] == 401
        for stranger in (trusting(site), trusting(site, other.issue("mallory"))):
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                ask(serving, stranger)
        assert ask(serving, trusting(site, site.issue("ada")))[0] == 200


def test_certificates_that_do_not_fit_are_named(site: Authority, tmp_path: Path) -> None:
    own, other = site.issue("view", "localhost"), site.issue("other")
    feed = Feed(About(title="", mode="live"))
    certificate, key = Path(own.certificate), Path(own.key)
    for wrong, said in (
        ({"tls_certificate": certificate}, "--tls-certificate and --tls-key together"),
        ({"tls_ca": Path(site.ca)}, "--tls-ca goes with both"),
        ({"tls_certificate": certificate, "tls_key": Path(other.key)}, "view.pem cannot be used"),
        (
            {"tls_certificate": certificate, "tls_key": tmp_path / "none"},
            "view.pem cannot be used: No such file",
        ),
        ({"tls_certificate": certificate, "tls_key": key, "tls_ca": key}, "cannot be used"),
    ):
        with pytest.raises(ServingError, match=said):
            Serving(feed, lambda: 0, Options(listen="127.0.0.1:0", **wrong))
