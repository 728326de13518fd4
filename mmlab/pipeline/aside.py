"""Work that Ctrl-C must not cut in two, though it takes a while: done in a thread of its own.

Python interrupts the main thread only. Whoever waits is interrupted at once; what is made meanwhile
is made to its end, and undone then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """What `make` returns or raises. `undo` gets it where nobody waits for it any more."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            result = make()
        except BaseException as error:
            made.set_exception(error)
        else:
            made.set_result(result)

    def drop(late: Future[T]) -> None:
        if late.exception() is None:
            undo(late.result())

    try:
        threading.Thread(target=run, name="mmlab-aside", daemon=True).start()
        return made.result()
    except BaseException as error:
        if not (made.done() and made.exception() is error):
            made.add_done_callback(drop)
        raise
