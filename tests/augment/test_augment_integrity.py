"""Images that are cut off or damaged are named; whole ones of every kind are taken."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness import command, ran
from waystage._native import AugmentError, augment_image

CUTS = 100
EOI, SOS = b"\xff\xd9", b"\xff\xda"

SAMPLES = np.random.default_rng(4)
SHADES = np.add.outer(np.arange(61), 2 * np.arange(83)).astype(np.uint8)
COLOURS = np.stack([SHADES, SHADES.T.repeat(2, 0)[:61, :61].repeat(2, 1)[:, :83], 255 - SHADES], axis=2)
NOISY = (COLOURS.astype(int) // 2 + SAMPLES.integers(0, 99, COLOURS.shape)).astype(np.uint8)

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "baseline": ("RGB", "jpeg", {"quality": 85}),
    "full-chroma": ("RGB", "jpeg", {"quality": 95, "subsampling": 0}),
    "half-chroma": ("RGB", "jpeg", {"quality": 60, "subsampling": 1}),
    "grey": ("L", "jpeg", {"quality": 75}),
    "cmyk": ("CMYK", "jpeg", {"quality": 75}),
    "optimised": ("RGB", "jpeg", {"quality": 30, "optimize": True}),
    "restarts": ("RGB", "jpeg", {"quality": 85, "restart_marker_blocks": 3}),
    "restart-rows": ("L", "jpeg", {"quality": 85, "restart_marker_rows": 1}),
    "progressive": ("RGB", "jpeg", {"quality": 85, "progressive": True}),
    "progressive-grey": ("L", "jpeg", {"quality": 99, "progressive": True}),
    "progressive-restarts": ("RGB", "jpeg", {"progressive": True, "restart_marker_blocks": 5}),
    "png": ("RGB", "png", {}),
    "png-alpha": ("RGBA", "png", {}),
    "png-palette": ("P", "png", {}),
    "png-bits": ("1", "png", {}),
}


def image(kind: str, pixels: Any = NOISY) -> bytes:
    mode, form, options = KINDS[kind]
    made = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(made, form, **options)
    return made.getvalue()


def augment(source: Path, target: Path) -> Any:
    done = ran(command("augment", source, target, "--json", "--op", "flip")).expect(8)
    return json.loads(done.out)


def test_every_cut_is_named_and_no_grey_image_is_made(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    expected = set()
    for kind in KINDS:
        whole = image(kind)
        for share in range(1, CUTS):
            cut = max(16, share * len(whole) // CUTS)
            name = f"{kind}-{share}.{KINDS[kind][1]}"
            (source / name).write_bytes(whole[:cut])
            expected.add(name)
        (source / f"{kind}-last.{KINDS[kind][1]}").write_bytes(whole[:-1])
        expected.add(f"{kind}-last.{KINDS[kind][1]}")
        (source / f"{kind}.{KINDS[kind][1]}").write_bytes(whole)
        (source / f"{kind}-more.{KINDS[kind][1]}").write_bytes(whole + b"\0 more than one image \xff")
    said = augment(source, tmp_path / "out")
    counts = said["counts"]
    assert counts["broken"] == len(expected) > 1000
    assert counts["made"] == 2 * len(KINDS) == len(list((tmp_path / "out").iterdir()))
    # The first 1,000 are reported, each with a reason.
    told = {error["path"]: error["error"] for error in said["errors"]}
    assert len(told) == 1000 and told.keys() <= expected
    assert all("cut off" in text or "damaged" in text for text in told.values()), set(told.values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][1] == "jpeg"])
def test_image_data_that_ends_before_its_end_marker_is_damaged(kind: str) -> None:
    whole = image(kind)
    begins = whole.rindex(SOS) + 12
    for share in range(0, 95, 5):
        cut = begins + share * (len(whole) - begins) // 100
        if whole[cut - 1] == 0xFF:
            continue  # Half of a stuffed byte would make other code of the end marker.
        with pytest.raises(AugmentError, match=r"scan|segment|marker"):
            augment_image(whole[:cut] + EOI, [])


def test_a_hole_in_the_middle_is_damage() -> None:
    for kind in ("restarts", "restart-rows", "progressive-restarts"):
        whole = image(kind)
        marks = [at for at in range(len(whole) - 1) if whole[at] == 0xFF and 0xD0 <= whole[at + 1] <= 0xD7]
        assert len(marks) > 4, kind
        for first, second in zip(marks[:-1:3], marks[1::3], strict=False):
            with pytest.raises(AugmentError, match="damaged"):
                augment_image(whole[:first] + whole[second:], [])
    whole = image("png")
    for at in range(40, len(whole) - 12, len(whole) // 50):
        with pytest.raises(AugmentError, match=r"checksum of chunk|longer than the file"):
            augment_image(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], [])


def test_whole_images_of_many_sizes_and_contents_are_taken() -> None:
    flat = np.full((33, 47, 3), 200, np.uint8)
    rough = SAMPLES.integers(0, 256, (130, 70, 3), np.uint8)
    for kind in KINDS:
        for pixels in (
            flat,
            rough,
            rough[:1, :1],
            rough[:9, :8],
            rough[:17, :33],
            rough[::-1, ::-1][:8, :65],
        ):
            before = Image.open(io.BytesIO(image(kind, pixels)))
            after = Image.open(io.BytesIO(augment_image(image(kind, pixels), [], encoding="png")))
            assert after.size == before.size, kind


def test_damage_is_seen_once_and_not_for_every_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.jpg").write_bytes(image("progressive")[:-200])
    (source / "b.jpg").write_bytes(image("progressive"))
    done = ran(command("augment", source, tmp_path / "out", "--copies", "5")).expect(8)
    assert "5 new images" in done.out and "; 1 broken" in done.out
    assert done.err.count("a.jpg: it is cut off after ") == 1, done.err
