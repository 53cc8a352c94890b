"""The examples in the help of each subcommand.

Arrives: a click command and its name.
Leaves: the command with an epilog of examples.
Must not know: what a subcommand does. A test parses every example.
"""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "copy": (
        "waystage copy /data/run42 /scratch/run42 --verify",
        "waystage copy /scratch/run7 ada@far.example.org:/archive/run7",
        "waystage copy /scratch/run7 /archive/run7 --bandwidth-limit 200M",
        "waystage copy /data/run42 /scratch/run42 --delete --dry-run",
        "waystage copy results.csv plots /archive/run42/",
        "waystage copy /archive/run42.tar - | tar x",
    ),
    "remote ls": ("waystage remote ls -l ada@far.example.org:/archive",),
    "remote mkdir": ("waystage remote mkdir -p ada@far.example.org:/archive/2026/run7",),
    "remote rm": ("waystage remote rm -r ada@far.example.org:/archive/run6",),
    "remote mv": (
        "waystage remote mv ada@far.example.org:/archive/run7 ada@far.example.org:/archive/run7.done",
    ),
    "verify": ("waystage verify /data/run42 /scratch/run42",),
    "compare": (
        "waystage compare /data/run42 /scratch/run42",
        "waystage compare results/sim results/lab",
    ),
    "stage in": (
        "waystage stage in /archive/run7 /scratch/run7 --job 4711 --wait",
        "waystage stage in login.example.org:/data/set9 /scratch/set9 --job 4711 --ssh",
        "waystage stage in /archive/run7 /scratch/run7 --job 4711 --dry-run",
    ),
    "stage out": ("waystage stage out /scratch/run7/out /archive/run7/out --job 4711 --verify",),
    "stage status": ("waystage stage status --job 4711 --explain",),
    "stage wait": ("waystage stage wait --job 4711",),
    "stage cancel": ("waystage stage cancel --job 4711",),
    "restripe": (
        "waystage restripe /scratch/run42 --suggest -o layouts.yaml",
        "waystage restripe /scratch/run42 --layout layouts.yaml --verify",
    ),
    "catalog build": ("waystage catalog build /scratch/run42 run42.catalog",),
    "catalog query": (
        "waystage catalog query run42.catalog --name '*.h5' --size +1G",
        "waystage catalog query run42.catalog --by directory --top 10",
        "waystage catalog query run42.catalog --age +90d --absolute -0 | xargs -0 ls -ld",
        "waystage catalog query run42.catalog --sql 'SELECT count(*) FROM entries'",
    ),
    "catalog refresh": ("waystage catalog refresh run42.catalog",),
    "catalog verify": ("waystage catalog verify run42.catalog",),
    "catalog checksum": ("waystage catalog checksum run42.catalog",),
    "catalog diff": ("waystage catalog diff monday.catalog tuesday.catalog",),
    "catalog layout": ("waystage catalog layout /scratch/run42/large.h5",),
    "catalog record": ("waystage catalog record run42.catalog --root /scratch/run42 -- ./simulation",),
    "load": ("waystage load run42.catalog", "waystage load /scratch/run42 --loaders 8"),
    "profile-targets": ("waystage profile-targets /scratch/run42 -o targets.json",),
    "dedup": ("waystage dedup /project", "waystage dedup /project --slurm 16"),
    "augment": ("waystage augment images augmented --op flip --op rotate:10 --seed 7",),
    "serve": (
        "waystage serve --init /etc/waystage-serve",
        "waystage serve --config /etc/waystage-serve/serve.toml --check",
        "waystage serve --config /etc/waystage-serve/serve.toml",
    ),
    "proxy": (
        "waystage proxy ada@far.example.org --forward 2222:storage.example.org:22",
        "waystage proxy ada@far.example.org --socks 1080",
    ),
    "probe": ("waystage probe ada@far.example.org", "waystage probe ada@far.example.org --json"),
    "mpi": (
        "waystage mpi --io -- mpirun -n 64 ./program",
        "waystage mpi --io --profile run.pattern -- mpirun -n 64 ./program",
    ),
    "tags serve": ("waystage tags serve --topology cluster.graphml --interface eth0",),
    "tags show": ("waystage tags show --topology paper 76:00:44:00:80:11",),
    "profile": ("waystage profile -o run.pattern -- mpirun -n 64 ./program",),
    "pattern show": ("waystage pattern show run.pattern",),
    "pattern convert": ("waystage pattern convert run.pattern run.json",),
    "controller": (
        "waystage controller --listen unixsock-stream//run/waystage/backplane.sock",
        "waystage controller --listen tls/198.51.100.1:7447 --tls-ca ca.pem --tls-certificate site.pem "
        "--tls-key site.key",
    ),
    "view": (
        "waystage view",
        "waystage view results/demo-20260102T030405Z",
        "waystage view --listen 127.0.0.1:0",
    ),
    "top": ("waystage top", "waystage top --once"),
    "flows": ("waystage flows --job 4711", "waystage flows --local --watch"),
    "flows set": ("waystage flows set node3:5f0c1b2a9d8e7f60 --bandwidth-limit 200M",),
    "flows pause": ("waystage flows pause node3:5f0c1b2a9d8e7f60",),
    "flows resume": ("waystage flows resume node3:5f0c1b2a9d8e7f60",),
    "events": (
        "waystage events --job 4711",
        "waystage events --type JobStarted --count 1 --timeout 60 --json",
    ),
    "state show": ("waystage state show",),
    "notify job-start": ("waystage notify job-start 4711 --nodes 'c[1-3]'",),
    "notify job-end": ("waystage notify job-end 4711",),
    "notify staging-start": ("waystage notify staging-start 4711 --direction in --bytes '8 GB'",),
    "notify staging-end": ("waystage notify staging-end 4711 --direction in",),
    "slurm install": ("waystage slurm install",),
    "slurm check": ("waystage slurm check",),
    "stager": ("waystage stager",),
    "run": (
        "waystage run experiments/demo.yaml --on sim",
        "waystage run experiments/demo.yaml --on lab --out results/demo",
    ),
    "report": ("waystage report results/demo",),
    "lab up": ("waystage lab up paper", "waystage lab up paper --slurm --name trial"),
    "lab down": ("waystage lab down --name trial",),
    "lab exec": ("waystage lab exec c1 -- hostname",),
    "bench": ("waystage bench", "waystage bench copy --quick", "waystage bench copy --time-limit 120 --json"),
    "doctor": ("waystage doctor",),
    "completion": ("waystage completion bash > ~/.local/share/bash-completion/completions/waystage",),
}
"""Name of a subcommand, below `waystage` -> command lines."""


def with_examples(command: click.Command, name: str) -> click.Command:
    """Add the examples of a command and those below it to their help."""
    if lines := EXAMPLES.get(name):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, sub in command.commands.items():
            with_examples(sub, f"{name} {below}")
    return command
