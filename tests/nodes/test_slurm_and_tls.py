"""Schedulers with TLS: what `--slurm` starts and submits, and one that the user has started."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness import Waystage
from nodes_support import dask_cluster
from waystage.nodes import NodesMissing, Where
from waystage.nodes.slurm import cluster, make


def test_a_slurm_job_has_a_whole_node_and_reaches_its_scheduler_by_tls_only(tmp_path: Path) -> None:
    made = make(str(tmp_path))
    try:
        script = made.job_script()
        assert "#SBATCH --exclusive" in script and "#SBATCH --nodes=1" in script
        assert "--cpus-per-task" not in script and "#SBATCH --mem=0" in script
        assert re.search(r"tls://[\d.]+:\d+", script) and "tcp://" not in script
        assert made.scheduler_address.startswith("tls://")
        assert "--nthreads 1" in script and "--no-dashboard" in script
        # Keys are not in the script, which Slurm shows to others, but in files of the user's own.
        assert "PRIVATE KEY" not in script
        keys = list(tmp_path.iterdir())
        assert len(keys) == 7 and all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
        # Dask's pages have no TLS, and are on loopback.
        served = _addresses(made.scheduler.http_server)
        assert served and all(address[0] == "127.0.0.1" for address in served)
    finally:
        made.close(timeout=20)


def _addresses(server: Any) -> list[tuple[Any, ...]]:
    return [socket.getsockname() for socket in server._sockets.values()]


def test_what_the_site_says_of_jobs_is_kept(tmp_path: Path) -> None:
    import dask

    said = {"jobqueue.slurm.cores": 4, "jobqueue.slurm.memory": "8 GB", "jobqueue.slurm.queue": "short"}
    with dask.config.set(said):
        made = make(str(tmp_path))
        try:
            script = made.job_script()
        finally:
            made.close(timeout=20)
    assert "#SBATCH -p short" in script and "--cpus-per-task=4" in script and "--exclusive" not in script


def test_without_sbatch_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodesMissing, match="needs Slurm's sbatch"), cluster(2, tmp_path):
        pass


@pytest.fixture
def certificates(tmp_path: Path) -> list[str]:
    """The options of a scheduler, worker or client, from files."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    files = (tmp_path / "ca.pem", tmp_path / "own.pem", tmp_path / "own.pem")
    names = ("--tls-ca-file", "--tls-cert", "--tls-key")
    return [word for name, file in zip(names, files, strict=True) for word in (name, str(file))]


def test_a_scheduler_with_tls_is_used_with_the_certificates_of_dasks_configuration(
    waystage: Waystage, tmp_path: Path, certificates: list[str]
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("content")
    ca, cert, key = certificates[1::2]
    security = [*certificates, "--protocol", "tls"]
    with dask_cluster(tmp_path / "dask", 1, security) as started:
        assert started.address.startswith("tls://")
        words = ("catalog", "build", "tree", "catalog", "--scheduler", started.address)
        refused = waystage(*words).expect(1)
        assert "no Dask scheduler answers at tls://" in refused.err and "certificates" in refused.err
        tls = {
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": ca,
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": cert,
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": key,
        }
        waystage(*words, **tls).expect()
    assert (tmp_path / "catalog" / "_catalog.json").exists()


def test_a_plain_scheduler_beyond_loopback_is_warned_of() -> None:
    assert "use tls://" in Where("tcp://10.0.0.1:8786").warning()
    for address in ("tls://10.0.0.1:8786", "tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:1"):
        assert Where(address).warning() == ""


def test_dask_does_not_change_what_an_interrupt_does() -> None:
    program = (
        "import signal\n"
        "from waystage.nodes.slurm import _signals_kept\n"
        "with _signals_kept():\n"
        "    from dask_jobqueue.slurm import SLURMCluster\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
