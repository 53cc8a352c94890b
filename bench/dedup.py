"""How fast data is cut into chunks and fingerprinted on one core, against what there is.

One thread, data in memory (256 MiB of noise, in which nothing repeats: the digest of every chunk is taken) and the same data as a file in
the page cache. Rates are bytes over the thread's own processor time, because a core is promised; what the clock on the wall says is in
`details`. All take turns. Peers: SHA-1 of hashlib over 8 KiB pieces, which cuts nothing; `sha1sum`; a rolling Rabin
fingerprint byte by byte with SHA-1, which is what FS-C does, compiled from C; and reading alone.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waystage._native import chunk_and_digest
from waystage.bench import BenchError, BenchOptions
from waystage.dedup import DedupOptions, profile
from waystage.stats import median

MIB = 1 << 20
SIZE = 256 * MIB
SIZE_QUICK = 16 * MIB
TURNS = 7

Work = Callable[[], None]


def run(options: BenchOptions) -> dict[str, Any]:
    size = SIZE_QUICK if options.quick else SIZE
    turns = options.repetitions or (2 if options.quick else TURNS)
    noise = random.Random(1)
    data = b"".join(noise.randbytes(MIB) for _ in range(size // MIB))
    with tempfile.TemporaryDirectory(prefix="waystage-dedup-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        path = tree / "noise"
        path.write_bytes(data)
        works: dict[str, Work] = {
            "fast": lambda: _check(chunk_and_digest(data, "fast"), size),
            "fsc": lambda: _check(chunk_and_digest(data, "fsc"), size),
            "fast_from_cache": lambda: _profile(tree, "fast", size),
            "fsc_from_cache": lambda: _profile(tree, "fsc", size),
            "hashlib_sha1_8k": lambda: _hashlib(data),
            "read": lambda: _read(path),
        }
        serial = _serial(Path(folder))
        if serial is not None:
            works["serial_rabin_sha1"] = lambda: _program([str(serial), str(path)])
        if (sha1sum := shutil.which("sha1sum")) is not None:
            works["sha1sum"] = lambda: _program([sha1sum, str(path)])
        cpu, wall = _turns(works, turns, options)
    rates = {name: size / median(seconds) / 1e9 for name, seconds in cpu.items()}
    ours = {"fast", "fsc", "fast_from_cache", "fsc_from_cache"}
    return {
        "figures": {
            "fast_gb_per_s": round(rates["fast"], 3),
            "fsc_gb_per_s": round(rates["fsc"], 3),
        },
        "peers": {f"{name}_gb_per_s": round(rate, 3) for name, rate in rates.items() if name not in ours},
        "details": {
            "bytes": size,
            "fast_from_cache_gb_per_s": round(rates["fast_from_cache"], 3),
            "fsc_from_cache_gb_per_s": round(rates["fsc_from_cache"], 3),
            "by_the_clock_gb_per_s": {
                name: round(size / median(seconds) / 1e9, 3) for name, seconds in wall.items()
            },
            "cpu_s": {name: [round(s, 4) for s in seconds] for name, seconds in cpu.items()},
            "wall_s": {name: [round(s, 4) for s in seconds] for name, seconds in wall.items()},
        },
    }


def _turns(
    works: dict[str, Work], turns: int, options: BenchOptions
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of processor and of the clock of each, taking turns; the first does not count."""
    cpu: dict[str, list[float]] = {name: [] for name in works}
    wall: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            options.progress(f"turn {turn} of {turns}: {name}", turn / (turns + 1))
            began, used = time.monotonic(), _processor_s()
            work()
            if turn > 0:
                cpu[name].append(_processor_s() - used)
                wall[name].append(time.monotonic() - began)
    return cpu, wall


def _processor_s() -> float:
    """Of this process, all its threads, and of programs it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _check(chunks: int, size: int) -> None:
    # Chunks of noise have some 9.6 KiB: anything else is another method, or data was left out.
    if not 8 << 10 < size / chunks < 12 << 10:
        raise BenchError(f"{size} bytes were cut into {chunks} chunks, which is not what the method does")


def _profile(tree: Path, method: str, size: int) -> None:
    report = profile(tree, DedupOptions(method, threads=1))
    if report.all.bytes != size or report.all.redundant_share > 0.01:
        raise BenchError(f"the report says {report.all}, and the tree has {size} bytes that differ")


def _hashlib(data: bytes) -> None:
    whole = memoryview(data)
    for at in range(0, len(data), 8192):
        hashlib.sha1(whole[at : at + 8192]).digest()


def _read(path: Path) -> None:
    room = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(room):
            pass


def _program(arguments: list[str]) -> None:
    subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)


def _serial(folder: Path) -> Path | None:
    """The usual loop, one byte after the other, with OpenSSL's SHA-1 where its headers are; None where it cannot be compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, program = folder / "serial.c", folder / "serial"
    source.write_text(SERIAL)
    done = subprocess.run(
        [compiler, "-O3", "-o", str(program), str(source), "-lcrypto"], capture_output=True, check=False
    )
    return program if done.returncode == 0 and os.access(program, os.X_OK) else None


SERIAL = r"""
#include <openssl/sha.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t P = 13827942727904890243ULL;
static uint64_t top[256], out[256];

static uint64_t times_x(uint64_t v, int n) {
  while (n--) { v <<= 1; if (v >> 63) v ^= P; }
  return v;
}

int main(int argc, char **argv) {
  for (int i = 0; i < 256; i++) {
    top[i] = times_x(i, 63) ^ ((uint64_t)i << 63);
    out[i] = times_x(i, 376);
  }
  FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
  if (!file) return 1;
  static unsigned char buffer[1 << 20], chunk[32768];
  unsigned char window[48] = {0}, digest[20], all = 0;
  size_t got, held = 0, at = 0;
  uint64_t print = 0;
  while ((got = fread(buffer, 1, sizeof buffer, file)) > 0)
    for (size_t i = 0; i < got; i++) {
      unsigned char byte = buffer[i];
      chunk[held++] = byte;
      if (held <= 2000) continue;
      print ^= out[window[at]];
      window[at] = byte;
      at = at == 47 ? 0 : at + 1;
      print = ((print << 8) | byte) ^ top[print >> 55];
      if ((print & 8191) == 8191 || held == sizeof chunk) {
        SHA1(chunk, held, digest);
        all ^= digest[0];
        held = at = 0;
        print = 0;
        for (int k = 0; k < 48; k++) window[k] = 0;
      }
    }
  printf("%d\n", all);
  return 0;
}
"""
