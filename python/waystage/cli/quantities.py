"""Parameter types and formatting for bytes, rates and shares.

Arrives: text from a command line; numbers.
Leaves: numbers, or a usage error that names the option; text.
Must not know: what is counted; the syntax of units (`waystage.units`).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import click

from waystage.units import UnitError, parse_bit_rate, parse_rate, parse_size

N = TypeVar("N", int, float)


class _Quantity(click.ParamType[N], Generic[N]):
    """A quantity read by `waystage.units`, between two bounds."""

    def __init__(self, least: N, most: N | None) -> None:
        self._bounds: dict[str, Any] = {"least": least} | ({} if most is None else {"most": most})

    def read(self, value: object) -> N:
        """Parse the text. Raises UnitError."""
        raise NotImplementedError

    def convert(self, value: str | N, param: click.Parameter | None, ctx: click.Context | None) -> N:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except UnitError as error:
            self.fail(f"{error} (docs/reference/units.md)", param, ctx)


class Size(_Quantity[int]):
    """`256Mi`, bytes."""

    name = "size"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        super().__init__(least, most)

    def read(self, value: object) -> int:
        """The size in bytes. Raises UnitError."""
        return parse_size(value, **self._bounds)


class Rate(_Quantity[int]):
    """`100M`, bytes a second."""

    name = "bytes/s"

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        super().__init__(least, most)

    def read(self, value: object) -> int:
        """The rate in bytes a second. Raises UnitError."""
        return parse_rate(value, **self._bounds)


class RateOrOff(Rate):
    """`100M`, or `off` for no limit, which is 0."""

    def read(self, value: object) -> int:
        """The rate in bytes a second; 0 for none. Raises UnitError."""
        return 0 if value == "off" else super().read(value)


class BitRate(_Quantity[float]):
    """`100Mbit`, bits a second."""

    name = "bit/s"

    def __init__(self, least: float = 1, most: float | None = None) -> None:
        super().__init__(least, most)

    def read(self, value: object) -> float:
        """The rate in bits a second. Raises UnitError."""
        return parse_bit_rate(value, **self._bounds)


def amount(number: int) -> str:
    """Bytes as text."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} PiB"


def rate(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"
