"""A training loop over a catalog: run `python examples/training_loader.py`.

It makes a small data set, catalogues it, trains a logistic regression over two epochs, stops in the middle of the second and
goes on in a new loader from the saved state, as after a crash. The weights are those of a run that was not interrupted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage.catalog import build
from waystage.loader import Loader

SAMPLES = 256
FEATURES = 16
BATCH = 32
STEPS_AN_EPOCH = SAMPLES // BATCH

Weights = NDArray[np.float64]


def make_data(root: Path) -> None:
    """A file a sample: its label, then its features."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=FEATURES)
    for number in range(SAMPLES):
        features = draw.normal(size=FEATURES)
        folder = root / f"class-{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        np.concatenate([[features @ truth > 0], features]).tofile(folder / f"{number:04d}.bin")


def batches(loader: Loader) -> Iterator[NDArray[np.float64]]:
    """Samples in groups. The buffers of the loader become arrays without a copy."""
    held = []
    for _, data in loader:
        held.append(np.frombuffer(data, np.float64))
        if len(held) == BATCH:
            yield np.stack(held)
            held = []


def step(weights: Weights, batch: NDArray[np.float64]) -> Weights:
    label, features = batch[:, 0], batch[:, 1:]
    guess = 1 / (1 + np.exp(-features @ weights))
    return weights + 0.5 * features.T @ (label - guess) / len(batch)


def train(catalog: Path, stop_after: int | None) -> Weights:
    weights = np.zeros(FEATURES)
    done = 0
    saved = None
    for epoch in range(2):
        with Loader(catalog, seed=1, epoch=epoch) as loader:
            for batch in batches(loader):
                weights = step(weights, batch)
                done += 1
                if done == stop_after:
                    saved = json.dumps(loader.state_dict())
                    break
    if saved is not None:
        with Loader(catalog, seed=1) as loader:
            loader.load_state_dict(json.loads(saved))
            for batch in batches(loader):
                weights = step(weights, batch)
    return weights


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder) / "data")
        catalog = Path(folder) / "data.catalog"
        build(Path(folder) / "data", catalog)
        straight = train(catalog, None)
        interrupted = train(catalog, STEPS_AN_EPOCH + 3)
        print(f"trained over {2 * STEPS_AN_EPOCH} steps: |w| = {np.linalg.norm(straight):.3f}")
        print(f"the same weights after an interruption: {np.array_equal(straight, interrupted)}")


if __name__ == "__main__":
    main()
