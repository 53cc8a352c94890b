"""Images, damaged: new images, or AugmentError, and nothing else. They go the way that a user's images go."""

from __future__ import annotations

import os
import random
import struct
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystage._native import AugmentError, augment_image

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100"))

MAX_PIXELS = 10_000


def _png() -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + random.Random(row).randbytes(60) for row in range(20))
    header = struct.pack(">IIBBBBB", 20, 20, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


SEEDS = (_png(), augment_image(_png(), [], encoding="jpeg"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_images_are_images_or_errors(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at:at] = data.draw(st.binary(max_size=40))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        made = augment_image(bytes(damaged), ["flip", "rotate:20"], max_pixels=MAX_PIXELS, encoding="png")
    except AugmentError:
        return
    width, height = struct.unpack(">II", made[16:24])
    assert 0 < width * height <= MAX_PIXELS


def test_headers_that_promise_too_much_take_no_memory() -> None:
    for edge in (1 << 14, 1 << 20, (1 << 31) - 1):
        image = bytearray(SEEDS[0])
        image[16:24] = struct.pack(">II", edge, edge)
        image[29:33] = struct.pack(">I", zlib.crc32(bytes(image[12:29])))
        try:
            augment_image(bytes(image), [], max_pixels=MAX_PIXELS)
        except AugmentError as error:
            assert "pixels" in str(error) or "limit" in str(error).lower()
        else:
            raise AssertionError(f"an image of {edge} x {edge} pixels was taken")
