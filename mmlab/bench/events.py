"""What a trial says while it runs: one JSON object a line, the same on a pipe and in a file.

The first rows are worth keeping even if a later request fails, so everything is told as it happens.
"""

from __future__ import annotations

import msgspec

from mmlab.errors import (
    BackpressureTimeout,
    BatchError,
    EncodeError,
    EngineError,
    MMLabError,
    TransportError,
    UsageError,
    WireError,
)

Value = str | int | float | bool | None
Row = dict[str, Value]


class TrialError(MMLabError):
    """A trial that ended without a result; the message says of which strategy and why."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """`done` of `total` steps; `text` says what is under way."""

    text: str
    done: int
    total: int


class Result(msgspec.Struct, frozen=True, tag="row"):
    """One row of `table`, without the columns that only the run knows."""

    table: str
    row: Row


class Control(msgspec.Struct, frozen=True, tag="control"):
    """Two requests that differ in their image only, and that their answers differ."""

    checksums: tuple[int, int]
    answers: tuple[list[int], list[int]]


class Failure(msgspec.Struct, frozen=True, tag="error"):
    """Why the trial ended early, in one line."""

    error: str  # name of the exception's class
    message: str
    exit_code: int | None = None  # of the engine, where that is what ended

    def exception(self, where: str) -> MMLabError:
        """The error as the caller should see it, of its own class where that is one of mmlab's."""
        message = f"{where}: {self.message}"
        if self.error == EngineError.__name__:
            return EngineError(message, self.exit_code)
        return _ERRORS.get(self.error, TrialError)(message)


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The trial ended well; nothing follows."""


Event = Progress | Result | Control | Failure | Done

_ERRORS: dict[str, type[MMLabError]] = {
    kind.__name__: kind
    for kind in (
        BackpressureTimeout,
        BatchError,
        EncodeError,
        TransportError,
        UsageError,
        WireError,
    )
}
_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One line, with its end."""
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    """The event of a line; TrialError where it is none."""
    try:
        event: Event = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise TrialError(f"not an event of a trial: {line[:80]!r} ({error})") from error
    return event


def failure(error: BaseException) -> Failure:
    """An exception as an event: its first line, and where it came from if it is not mmlab's own."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if not isinstance(error, MMLabError):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
        text = f"{type(error).__name__}: {text}{place}"
    return Failure(type(error).__name__, text, getattr(error, "exit_code", None))
