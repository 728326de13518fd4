"""Too few file descriptors, said by name.

Where they run out, the kernel's error comes from anywhere: a pipe, a socket of ZeroMQ, the start of
a process. Some places inside ZeroMQ even end the whole process. So the number that is needed is
tried out before, and whatever still fails for this reason becomes one error with one remedy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

import zmq

from mmlab.errors import TransportError

TRANSPORT_DESCRIPTORS = 16  # of a context with two links that are connected, with a few to spare


def is_descriptor_limit(error: BaseException) -> bool:
    """Whether it says that this process, or the system, can open no more files."""
    kind = isinstance(error, OSError | zmq.ZMQError)
    return kind and getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)


def descriptor_error(doing: str, error: BaseException) -> TransportError:
    """The TransportError that names the limit and the remedy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TransportError(
        f"{doing}: no file descriptor is free ({error}); this process may have {soft} (hard limit "
        f"{hard}). Raise the limit (`ulimit -n 4096`) or close files and pipelines"
    )


@contextlib.contextmanager
def naming_the_limit(doing: str) -> Iterator[None]:
    """An error inside that means too few descriptors becomes a TransportError."""
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        if not is_descriptor_limit(error):
            raise
        raise descriptor_error(doing, error) from error


def require_descriptors(count: int, doing: str) -> None:
    """TransportError unless `count` more descriptors can be opened now."""
    taken: list[int] = []
    with naming_the_limit(f"{doing} needs {count} file descriptors, {doing}"):
        try:
            while len(taken) < count:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for fd in taken:
                os.close(fd)
