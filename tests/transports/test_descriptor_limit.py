"""Too few file descriptors: an error with a remedy, and never a wait."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from mmlab import TransportError
from mmlab.transports import open_transport
from mmlab.transports.limits import naming_the_limit, require_descriptors


def _no_pipe() -> tuple[int, int]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.timeout(20)
def test_a_link_that_cannot_be_made_does_not_keep_its_transport_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leftovers: Callable[..., list[str]]
) -> None:
    transport = open_transport("ipc")
    monkeypatch.setattr(os, "pipe", _no_pipe)
    with pytest.raises(TransportError, match=r"Too many open files.*ulimit -n"):
        transport.bind_requests(tmp_path)
    transport.close()
    monkeypatch.undo()
    assert not leftovers("fds", "threads")


@pytest.mark.timeout(20)
def test_closing_does_not_wait_for_a_socket_that_nobody_closed() -> None:
    transport = open_transport("inproc")
    socket = transport._context.socket(zmq.PUSH)  # type: ignore[attr-defined]
    transport.close()
    assert socket.closed


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("kind", [lambda n: OSError(n, "full"), zmq.ZMQError])
def test_both_kinds_of_error_name_the_limit(number: int, kind: Callable[[int], Exception]) -> None:
    with pytest.raises(TransportError, match="start: no file descriptor is free"):  # noqa: SIM117
        with naming_the_limit("start"):
            raise kind(number)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(FileNotFoundError), naming_the_limit("start"):
        raise FileNotFoundError(errno.ENOENT, "no such file")


def test_trying_out_leaves_nothing(leftovers: Callable[..., list[str]]) -> None:
    require_descriptors(20, "a test")
    with pytest.raises(TransportError, match="a test needs 10000000 file descriptors"):
        require_descriptors(10_000_000, "a test")
    assert not leftovers("fds")
