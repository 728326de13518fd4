"""Ctrl-C waits for what must not be cut in two: the frames of one message, a thread and its owner.

Half a message in a socket would swallow the beginning of the next one, which is somebody else's.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class uninterrupted:
    """Within it, SIGINT is noted in the main thread, and its handler is called at the end.

    For a few microseconds of work: whoever waits within it cannot be interrupted. In other threads,
    which Python never interrupts, and where no Python function handles SIGINT, it does nothing.
    """

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._came: FrameType | bool | None = False  # False: nothing came
        self._handler = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = frame

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if not isinstance(self._came, bool):
                self._handler(signal.SIGINT, self._came)
