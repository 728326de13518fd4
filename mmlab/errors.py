"""The errors of mmlab: few, named after whose turn it is, all below `MMLabError`.

Every message says where, got, wanted and remedy, so that a log line alone is enough to act on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MMLabError(Exception):
    """Base of everything mmlab raises on purpose."""


class EncodeError(MMLabError, TypeError):
    """A value cannot be carried on the wire; raised in the caller, before anything is sent."""


class WireError(MMLabError, ValueError):
    """Received frames are not a valid message. The connection that brought them lives on."""


class BatchError(MMLabError, ValueError):
    """Items cannot be described, combined or split as asked."""


class TransportError(MMLabError):
    """A transport could not be set up, or a peer cannot be reached."""


class EngineError(MMLabError):
    """The engine failed or died. `exit_code` is its exit code where it has ended, else None."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BackpressureTimeout(MMLabError, TimeoutError):
    """A bounded resource (bytes in flight, staging memory) stayed full for the whole timeout."""


class UsageError(MMLabError, ValueError):
    """A name or setting from the user that mmlab does not know; nothing has been started."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """`unknown strategy 'msgpak': did you mean 'msgpack'? known: pickle, msgpack`."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names) or '(none)'}")
