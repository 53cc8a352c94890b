"""Which ranks send to which in a collective, step by step.

Arrives: a primitive, Open MPI's name of an algorithm, the number of ranks, bytes, the root.
Leaves: steps: the bytes of one message, and pairs of ranks of the communicator.
Must not know: hosts, links, MPI.

The algorithms are those of Open MPI 4.1 (ompi/mca/coll/base), after Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005). `bytes` is the whole buffer of allreduce, reduce and bcast, what
one rank contributes to allgather, and one block of alltoall, as the arguments of the calls have it. Steps of a ring with
equal pairs are one, with the bytes of all. An algorithm that is not here, or that is made of two other collectives, has
no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

MOST_RANKS = 4096
"""Of a communicator whose steps are worked out; a larger one's are left to the hash."""

MOST_PAIRS = 1 << 16


class Step(NamedTuple):
    """`bytes` of each pair's message."""

    bytes: float
    pairs: tuple[tuple[int, int], ...]


Steps = Iterator[Step]
Pair = tuple[int, int]
Receivers = tuple[tuple[int, int], ...]
"""Ranks and the bytes sent to each, in the order of sending."""

OPEN_MPI: dict[str, tuple[str, ...]] = {
    "allreduce": ("basic_linear", "", "recursive_doubling", "ring", "segmented_ring", "rabenseifner"),
    "bcast": (
        *("basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
        *("scatter_allgather", "scatter_allgather_ring"),
    ),
    "reduce": ("linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner"),
}
"""Names of the numbers from 1 on that `--mca coll_tuned_PRIMITIVE_algorithm` takes; as in shim/paths/wrap.c."""


def steps_of(primitive: str, algorithm: str, size: int, count: int, root: int = -1) -> tuple[Step, ...]:
    """The steps of one call among `size` ranks with `count` bytes; empty where they are not known."""
    make = _ALGORITHMS.get((primitive, algorithm))
    if make is None or not 2 <= size <= MOST_RANKS or (root >= size):
        return ()
    found: list[Step] = []
    total = 0
    for step in make(size, float(count), max(root, 0)):
        total += len(step.pairs)
        if total > MOST_PAIRS:
            return ()
        if step.pairs:
            found.append(step)
    return tuple(found)


def receivers(
    primitive: str, algorithm: str, size: int, count: int, root: int, *, most: int
) -> dict[int, frozenset[int]] | None:
    """Whom each rank sends to; None where that is not known, or more than `most` pairs."""
    steps = steps_of(primitive, algorithm, size, count, root)
    if not steps or sum(len(step.pairs) for step in steps) > most:
        return None
    found: dict[int, set[int]] = {rank: set() for rank in range(size)}
    for step in steps:
        for sender, receiver in step.pairs:
            found[sender].add(receiver)
    return {rank: frozenset(ranks) for rank, ranks in found.items()}


def corrected(steps: Iterable[Step], sent: Iterable[tuple[int, Receivers]]) -> tuple[dict[Pair, float], ...]:
    """Bytes of each pair, step by step, where what the ranks of `sent` send is not what `steps` say but this.

    A rank's receivers are those of the steps from the first on: it sends to one after the other.
    """
    true = dict(sent)
    found: list[dict[Pair, float]] = [
        {pair: step.bytes for pair in step.pairs if pair[0] not in true} for step in steps
    ]
    for sender, receivers_ in true.items():
        for at, (receiver, size) in enumerate(receivers_):
            if at == len(found):
                found.append({})
            found[at][sender, receiver] = float(size)
    return tuple(step for step in found if step)


def _power_below(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def _both(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return (*pairs, *((b, a) for a, b in pairs))


def _folded(size: int) -> tuple[int, list[int]]:
    """Ranks beyond a power of two, and the ranks that stay: every second of the first ones, then the others."""
    power = _power_below(size)
    extra = size - power
    return extra, [*range(1, 2 * extra, 2), *range(2 * extra, size)]


def _recursive_doubling(size: int, count: float, root: int) -> Steps:
    extra, stay = _folded(size)
    fold = tuple((rank, rank + 1) for rank in range(0, 2 * extra, 2))
    yield Step(count, fold)
    yield from _doubling(stay, count)
    yield Step(count, tuple((b, a) for a, b in fold))


def _doubling(stay: list[int], count: float) -> Steps:
    distance = 1
    while distance < len(stay):
        yield Step(count, tuple((rank, stay[at ^ distance]) for at, rank in enumerate(stay)))
        distance *= 2


def _rabenseifner(size: int, count: float, root: int) -> Steps:
    """Reduce-scatter by recursive halving, the nearest first, then allgather back."""
    extra, stay = _folded(size)
    fold = [(rank, rank + 1) for rank in range(0, 2 * extra, 2)]
    yield Step(count / 2, _both(fold))
    yield Step(count / 2, tuple(fold))
    halves = list(_halving(stay, count))
    yield from halves
    yield from reversed(halves)
    yield Step(count, tuple((b, a) for a, b in fold))


def _halving(stay: list[int], count: float) -> Steps:
    distance, part = 1, count / 2
    while distance < len(stay):
        yield Step(part, tuple((rank, stay[at ^ distance]) for at, rank in enumerate(stay)))
        distance, part = distance * 2, part / 2


def _reduce_rabenseifner(size: int, count: float, root: int) -> Steps:
    """Reduce-scatter, then a binomial gather."""
    extra, stay = _folded(size)
    fold = [(rank, rank + 1) for rank in range(0, 2 * extra, 2)]
    yield Step(count / 2, _both(fold))
    yield Step(count / 2, tuple(fold))
    halves = list(_halving(stay, count))
    yield from halves
    yield from reversed(halves)
    if root not in stay:
        yield Step(count, ((root + 1, root),))


def _ring(size: int, count: float, root: int) -> Steps:
    pairs = tuple((rank, (rank + 1) % size) for rank in range(size))
    yield Step(2 * count * (size - 1) / size, pairs)


def _ring_of_blocks(size: int, count: float, root: int) -> Steps:
    yield Step(count * (size - 1), tuple((rank, (rank + 1) % size) for rank in range(size)))


def _gather_doubling(size: int, count: float, root: int) -> Steps:
    if size != _power_below(size):
        yield from _bruck(size, count, root)
        return
    distance = 1
    while distance < size:
        yield Step(count * distance, tuple((rank, rank ^ distance) for rank in range(size)))
        distance *= 2


def _bruck(size: int, count: float, root: int) -> Steps:
    distance = 1
    while distance < size:
        blocks = min(distance, size - distance)
        yield Step(count * blocks, tuple((rank, (rank - distance) % size) for rank in range(size)))
        distance *= 2


def _neighbours(size: int, count: float, root: int) -> Steps:
    if size % 2:
        yield from _ring_of_blocks(size, count, root)
        return
    near = [(rank, rank + 1) for rank in range(0, size, 2)]
    far = [(rank, (rank + 1) % size) for rank in range(1, size, 2)]
    yield Step(count * size / 2, _both(near))
    yield Step(count * size / 2, _both(far))


def _exchange_all(size: int, count: float, root: int) -> Steps:
    if size * (size - 1) > MOST_PAIRS:
        return
    yield Step(count, tuple((a, b) for a in range(size) for b in range(size) if a != b))


def _pairwise(size: int, count: float, root: int) -> Steps:
    for distance in range(1, size):
        yield Step(count, tuple((rank, (rank + distance) % size) for rank in range(size)))


def _bruck_alltoall(size: int, count: float, root: int) -> Steps:
    distance = 1
    while distance < size:
        blocks = sum(1 for block in range(size) if block & distance)
        yield Step(count * blocks, tuple((rank, (rank + distance) % size) for rank in range(size)))
        distance *= 2


def _branches(size: int, distance: int, root: int, parents: range) -> list[tuple[int, int]]:
    """(parent, child) of a binomial tree's step: a child is `distance` after its parent, both counted from the root."""
    return [((at + root) % size, (at + distance + root) % size) for at in parents if at + distance < size]


def _tree(size: int, count: float, root: int) -> Steps:
    """A binomial tree, whose step d has distance d: in each, those that have the data send on."""
    distance = 1
    while distance < size:
        yield Step(count, tuple(_branches(size, distance, root, range(distance))))
        distance *= 2


def _tree_in_order(size: int, count: float, root: int) -> Steps:
    """A binomial tree that keeps ranks of a subtree together; towards the root."""
    distance = 1
    while distance < size:
        down = _branches(size, distance, root, range(0, size, 2 * distance))
        yield Step(count, tuple((child, parent) for parent, child in down))
        distance *= 2


def _linear_from_root(size: int, count: float, root: int) -> Steps:
    yield Step(count, tuple((root, rank) for rank in range(size) if rank != root))


def _linear_to_root(size: int, count: float, root: int) -> Steps:
    yield Step(count, tuple((rank, root) for rank in range(size) if rank != root))


def _pipeline_from_root(size: int, count: float, root: int) -> Steps:
    yield Step(count, tuple(((at + root) % size, (at + 1 + root) % size) for at in range(size - 1)))


def _pipeline_to_root(size: int, count: float, root: int) -> Steps:
    yield Step(count, tuple(((at + 1 + root) % size, (at + root) % size) for at in range(size - 1)))


def _scatter_ring(size: int, count: float, root: int) -> Steps:
    """Van de Geijn's broadcast: a binomial scatter, then a ring."""
    yield from _scatter_tree(size, count, root)
    yield Step(count * (size - 1) / size, tuple((rank, (rank + 1) % size) for rank in range(size)))


def _scatter_doubling(size: int, count: float, root: int) -> Steps:
    yield from _scatter_tree(size, count, root)
    yield from _gather_doubling(size, count / size, root)


def _scatter_tree(size: int, count: float, root: int) -> Steps:
    distance = 1 << (size - 1).bit_length() - 1
    while distance:
        pairs = tuple(_branches(size, distance, root, range(0, size, 2 * distance)))
        yield Step(count * distance / size, pairs)
        distance //= 2


_ALGORITHMS: dict[tuple[str, str], Callable[[int, float, int], Steps]] = {
    ("allreduce", "recursive_doubling"): _recursive_doubling,
    ("allreduce", "ring"): _ring,
    ("allreduce", "segmented_ring"): _ring,
    ("allreduce", "rabenseifner"): _rabenseifner,
    ("bcast", "basic_linear"): _linear_from_root,
    ("bcast", "pipeline"): _pipeline_from_root,
    ("bcast", "binomial"): _tree,
    ("bcast", "scatter_allgather"): _scatter_doubling,
    ("bcast", "scatter_allgather_ring"): _scatter_ring,
    ("reduce", "linear"): _linear_to_root,
    ("reduce", "pipeline"): _pipeline_to_root,
    ("reduce", "binomial"): _tree_in_order,
    ("reduce", "rabenseifner"): _reduce_rabenseifner,
    ("allgather", "linear"): _exchange_all,
    ("allgather", "bruck"): _bruck,
    ("allgather", "recursive_doubling"): _gather_doubling,
    ("allgather", "ring"): _ring_of_blocks,
    ("allgather", "neighbor"): _neighbours,
    ("alltoall", "linear"): _exchange_all,
    ("alltoall", "linear_sync"): _exchange_all,
    ("alltoall", "pairwise"): _pairwise,
    ("alltoall", "modified_bruck"): _bruck_alltoall,
    ("gather", "linear"): _linear_to_root,
    ("gather", "linear_sync"): _linear_to_root,
    ("scatter", "linear"): _linear_from_root,
    ("scatter", "binomial"): _scatter_tree,
}
