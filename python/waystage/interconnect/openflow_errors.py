"""Errors of the OpenFlow side, apart so that every module may raise them.

Arrives: nothing.
Leaves: the errors.
Must not know: anything else.
"""

from __future__ import annotations


class MessageError(ValueError):
    """Bytes that are no OpenFlow message of a switch; the text says which length or number is wrong."""


class OpenFlowError(RuntimeError):
    """The server cannot start, or a switch did not answer; the message says which and what to do."""


class AccessError(OpenFlowError):
    """A listening configuration that is open to unknown switches or unusable; the message gives the fix."""
