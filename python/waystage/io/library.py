"""The C library, loaded once, with the types of its functions.

Arrives: calls. Leaves: results, or exceptions. Must not know: what the calls are for.

`ctypes` releases the GIL in each call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int64, c_size_t, c_ubyte, c_void_p
from functools import cache
from pathlib import Path

from waystage.io.errors import raised

ABI = 1
"""`WS_IO_ABI`."""

ID_BYTES = 16
CONTROL_BYTES = 65536


class Open(Structure):
    """`struct ws_io_open`."""

    _fields_ = [
        ("path", c_char_p),
        ("flags", c_int),
        ("id", c_ubyte * ID_BYTES),
        ("rank", c_int),
        ("size", c_int),
        ("nodes", c_int),
        ("addresses", POINTER(c_char_p)),
        ("node_of", POINTER(c_int)),
        ("hints", c_int),
        ("hint", POINTER(c_char_p)),
    ]


class Couple(Structure):
    """`struct ws_io_couple`."""

    _fields_ = [
        ("name", c_char_p),
        ("role", c_int),
        ("rank", c_int),
        ("size", c_int),
        ("depth", c_int),
        ("timeout_ms", c_int),
        ("lease_ms", c_int),
        ("directory", c_char_p),
        ("store", c_char_p),
        ("socket", c_char_p),
        ("token", c_char_p),
    ]


class Box(Structure):
    """`struct ws_io_box`."""

    _fields_ = [
        ("variable", c_char_p),
        ("element", c_char_p),
        ("element_bytes", c_int64),
        ("dimensions", c_int),
        ("shape", POINTER(c_int64)),
        ("starts", POINTER(c_int64)),
        ("counts", POINTER(c_int64)),
    ]


_HANDLE = c_void_p
_INTS = POINTER(c_int64)

_CODES: dict[str, list[type]] = {
    "ws_io_connect": [c_char_p, c_char_p, c_int, POINTER(_HANDLE)],
    "ws_io_address": [_HANDLE, c_char_p, c_size_t],
    "ws_io_file_id": [c_ubyte * ID_BYTES],
    "ws_io_open": [_HANDLE, POINTER(Open), POINTER(_HANDLE)],
    "ws_io_close": [_HANDLE],
    "ws_io_hint": [_HANDLE, c_char_p, c_char_p, c_size_t],
    "ws_io_set_view": [_HANDLE, c_int64, c_int64, _HANDLE],
    "ws_io_control_point": [_HANDLE, c_int, c_int64, c_char_p, c_size_t, POINTER(c_size_t)],
    "ws_io_adopt": [_HANDLE, c_char_p, c_size_t],
    "ws_io_finished": [_HANDLE, c_int, c_int64],
    **{
        f"ws_io_{name}": [_HANDLE, c_int64, c_void_p, c_int64, _HANDLE, _INTS]
        for name in ("write_all", "read_all", "write", "read")
    },
    **{
        f"ws_io_{name}": [_HANDLE, c_int64, _INTS, _INTS, c_void_p, c_int64, _HANDLE, _INTS]
        for name in ("write_list", "read_list")
    },
    "ws_io_sync": [_HANDLE],
    "ws_io_couple": [POINTER(Couple), POINTER(_HANDLE)],
    "ws_io_put": [_HANDLE, c_int64, POINTER(Box), c_void_p, _HANDLE],
    "ws_io_get": [_HANDLE, c_int64, POINTER(Box), c_void_p, _HANDLE],
    "ws_io_commit": [_HANDLE, c_int64],
    "ws_io_next": [_HANDLE, c_int64, _INTS],
    "ws_io_inquire": [
        *[_HANDLE, c_int64, c_char_p, c_char_p, c_size_t],
        *[_INTS, POINTER(c_int), _INTS],
    ],
    "ws_io_uncouple": [_HANDLE, c_int],
    "ws_io_version_open": [_HANDLE, c_int64],
    "ws_io_version_view": [_HANDLE, c_int64, c_int64, _HANDLE],
    **{
        f"ws_io_version_{name}": [_HANDLE, c_int64, c_void_p, c_int64, _HANDLE, _INTS]
        for name in ("write", "read")
    },
    "ws_io_version_size": [_HANDLE, _INTS],
    "ws_io_version_resize": [_HANDLE, c_int64],
    "ws_io_version_commit": [_HANDLE, c_int],
}
"""Functions that return a code, with their arguments."""

_TYPES: dict[str, list[type]] = {
    "bytes": [c_int64],
    "contiguous": [c_int64, _HANDLE],
    "hvector": [c_int64, c_int64, c_int64, _HANDLE],
    "hindexed": [c_int64, _INTS, _INTS, _HANDLE],
    "hindexed_block": [c_int64, c_int64, _INTS, _HANDLE],
    "struct": [c_int64, _INTS, _INTS, POINTER(_HANDLE)],
    "resized": [c_int64, c_int64, _HANDLE],
    "subarray": [c_int, _INTS, _INTS, _INTS, c_char, _HANDLE],
    "darray": [c_int, c_int, c_int, _INTS, c_char_p, _INTS, _INTS, c_char, _HANDLE],
}
"""Constructors of datatypes, `ws_io_type_NAME`, which return a handle."""


@cache
def path() -> Path:
    """Where the library is."""
    return Path(__file__).parents[1] / "data" / "lib" / "libwaystage_io.so"


@cache
def library() -> ctypes.CDLL:
    """The library. OSError, with what to do, where it is missing or of another version."""
    try:
        loaded = ctypes.CDLL(str(path()))
    except OSError as error:
        raise OSError(f"{error}: run `make build`, or install a wheel of Waystage") from None
    if loaded.ws_io_abi() != ABI:
        raise OSError(f"{path()} has interface {loaded.ws_io_abi()}, not {ABI}: run `make build`")
    loaded.ws_io_message.restype = c_char_p
    for name, arguments in _CODES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int
    for name, arguments in _TYPES.items():
        function = getattr(loaded, f"ws_io_type_{name}")
        function.argtypes, function.restype = arguments, _HANDLE
    for name in ("ws_io_disconnect", "ws_io_type_free"):
        function = getattr(loaded, name)
        function.argtypes, function.restype = [_HANDLE], None
    return loaded


def message() -> str:
    """The sentence of this thread's last error."""
    found: bytes = library().ws_io_message()
    return found.decode("utf-8", "replace")


def call(name: str, *arguments: object) -> None:
    """Call `ws_io_NAME`; its error as an exception."""
    code: int = getattr(library(), f"ws_io_{name}")(*arguments)
    if code != 0:
        raise raised(code, message())


def numbers(values: tuple[int, ...] | list[int]) -> ctypes.Array[c_int64]:
    """An array of int64_t. OverflowError is none: values are taken modulo 2^64, so they are checked."""
    for value in values:
        if not -(1 << 63) <= value < 1 << 63:
            raise raised(-9, f"{value} does not fit 64 bits")
    return (c_int64 * len(values))(*values)
