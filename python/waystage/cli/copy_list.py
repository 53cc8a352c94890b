"""The list of names of `waystage copy --files-from`.

Arrives: an open file, how names are divided.
Leaves: names that were checked, or one sentence that says which is none.
Must not know: where they lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from waystage.cli.common import ExitCode, UserError

if TYPE_CHECKING:
    from waystage._native import NameList


def read_list(file: BinaryIO | None, nul: bool) -> NameList | None:
    """The names in the file; None where there is no file. Raises UserError."""
    from waystage._native import COPY_LIST_BYTES, NameList

    if file is None:
        if nul:
            raise UserError(
                "--null says how names are divided in a list: give --files-from too", ExitCode.USAGE
            )
        return None
    try:
        return NameList(file.read(COPY_LIST_BYTES + 1), nul)
    except OSError as error:
        raise UserError(f"{file.name} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None
    except ValueError as error:
        raise UserError(f"{file.name}: {error}", ExitCode.BAD_INPUT) from None
