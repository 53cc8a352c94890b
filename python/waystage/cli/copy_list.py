"""The list of names of `waystage copy --files-from`.

Arrives: an open file, a separator.
Leaves: checked names, or an error that quotes the invalid one.
Must not know: what the names refer to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from waystage.cli.common import ExitCode, UserError

if TYPE_CHECKING:
    from waystage._native import NameList


def read_list(file: BinaryIO | None, nul: bool) -> NameList | None:
    """The names in the file; None if no file was given. Raises UserError."""
    from waystage._native import COPY_LIST_BYTES, NameList

    if file is None:
        if nul:
            raise UserError("--null needs --files-from", ExitCode.USAGE)
        return None
    try:
        return NameList(file.read(COPY_LIST_BYTES + 1), nul)
    except OSError as error:
        raise UserError(f"{file.name} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None
    except ValueError as error:
        raise UserError(f"{file.name}: {error}", ExitCode.BAD_INPUT) from None
