"""How the command and the jobs of a run connect to the controllers of a site.

Arrives: the options of a cluster, the environment.
Leaves: a backplane configuration that only connects.
Must not know: Slurm, what is published.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from waystage.backplane import BackplaneConfig, config_from, load_config
from waystage.experiment.schema import ClusterOptions
from waystage.jobs.notify import DEFAULT_ENDPOINT

LOCAL = "local"
"""How sources of clients of unix sockets begin."""


def connection(options: ClusterOptions, name: str, endpoint: str = "") -> BackplaneConfig:
    """As `waystage notify` has it: `config` or $WAYSTAGE_CONFIG, then the endpoint or $WAYSTAGE_ENDPOINT.

    `endpoint` overrides all. Sources begin as access rules demand and end in `name`: jobs publish at the same time.
    Raises BackplaneError.
    """
    file = options.config or os.environ.get("WAYSTAGE_CONFIG")
    base = config_from(load_config(Path(file)), file) if file else BackplaneConfig()
    endpoint = endpoint or options.endpoint or os.environ.get("WAYSTAGE_ENDPOINT", "")
    if endpoint or not base.connect:
        base = msgspec.structs.replace(base, connect=(endpoint or DEFAULT_ENDPOINT,))
    begin = base.publisher_name if base.name or base.tls is not None else LOCAL
    return msgspec.structs.replace(base, name=f"{begin}.{name}", listen=(), access=())
