"""How fast data is cut into chunks and fingerprinted on one core, against other methods.

One thread, data in memory (256 MiB of noise without duplicates: every chunk is digested) and the same data as a file
in the page cache. Rates are bytes over CPU time, because a core is promised; `details` has rates over wall-clock
time. Peers: SHA-1 of hashlib over 8 KiB pieces, which cuts nothing; `sha1sum`; a rolling Rabin fingerprint byte by
byte with SHA-1, which is what FS-C does, compiled from C; and reading alone.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waystage._native import chunk_and_digest
from waystage.bench import BenchError, BenchOptions, compile_c, run_program, take_turns, timing
from waystage.dedup import DedupOptions, profile

MIB = 1 << 20
SIZE = 256 * MIB
SIZE_QUICK = 16 * MIB
TURNS = 7

OURS = ("fast", "fsc", "fast_from_cache", "fsc_from_cache")
TAKES_S = 60, 10


def run(options: BenchOptions) -> dict[str, Any]:
    size = SIZE_QUICK if options.quick else SIZE
    noise = random.Random(1)
    data = b"".join(noise.randbytes(MIB) for _ in range(size // MIB))
    with tempfile.TemporaryDirectory(prefix="waystage-dedup-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        path = tree / "noise"
        path.write_bytes(data)
        works: dict[str, Callable[[], object]] = {
            "fast": lambda: _check(chunk_and_digest(data, "fast"), size),
            "fsc": lambda: _check(chunk_and_digest(data, "fsc"), size),
            "fast_from_cache": lambda: _profile(tree, "fast", size),
            "fsc_from_cache": lambda: _profile(tree, "fsc", size),
            "hashlib_sha1_8k": lambda: _hashlib(data),
            "read": lambda: _read(path),
        }
        if (serial := _serial(Path(folder))) is not None:
            works["serial_rabin_sha1"] = lambda: run_program([serial, path])
        if (sha1sum := shutil.which("sha1sum")) is not None:
            works["sha1sum"] = lambda: run_program([sha1sum, path])
        contestants = {name: timing(work) for name, work in works.items()}
        turns = take_turns(options, contestants, turns=TURNS, quick=2, warm_up=1)
    by_cpu, by_clock = (
        {str(name): round(size / seconds / 1e9, 3) for name, seconds in turns.medians(key).items()}
        for key in ("cpu_s", "seconds")
    )
    return {
        "figures": {"fast_gb_per_s": by_cpu["fast"], "fsc_gb_per_s": by_cpu["fsc"]},
        "peers": {f"{name}_gb_per_s": rate for name, rate in by_cpu.items() if name not in OURS},
        "details": turns.details()
        | {
            "bytes": size,
            "fast_from_cache_gb_per_s": by_cpu["fast_from_cache"],
            "fsc_from_cache_gb_per_s": by_cpu["fsc_from_cache"],
            "by_the_clock_gb_per_s": by_clock,
        },
    }


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


def _serial(folder: Path) -> Path | None:
    """The usual loop, byte by byte, with OpenSSL's SHA-1; None where it cannot be compiled."""
    source = folder / "serial.c"
    source.write_text(SERIAL)
    try:
        return compile_c(source, "-O3", "-lcrypto", into=folder)
    except BenchError:
        return None


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
