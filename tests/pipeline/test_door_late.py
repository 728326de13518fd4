"""A door that is busy with one visitor refuses nobody else for it, and a crowd is waited for."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from pipeline_parts import engine_config

from mmlab.errors import TransportError
from mmlab.pipeline import attached
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.guests import Guests
from mmlab.pipeline.joining import Door
from mmlab.pipeline.messages import Join, Joined, Ready, Welcome

ANSWER_S = 0.5


class Watch:
    """A watchdog that looks at nothing."""

    def watch(self, *arguments: object) -> None: ...
    def unwatch(self, *arguments: object) -> None: ...


def test_who_answered_in_time_is_let_in_however_long_another_takes(tmp_path: Path) -> None:
    def admit(number: int, max_nbytes: int, descriptor: int | None) -> int:
        time.sleep(2 * ANSWER_S)  # as long as a large arena takes
        return 0

    guests = Guests(Watch(), admit, lambda number: None)  # type: ignore[arg-type]
    door = Door(tmp_path / "ctl", guests, answer_s=ANSWER_S)
    ready = Ready(
        pid=1,
        device="cpu",
        pinned=False,
        torch_threads=1,
        malloc_tuned=True,
        requests_endpoint="",
        replies_endpoint="",
        start_s={},
    )
    door.open(Welcome(config=engine_config(), ready=ready))
    visitors = []
    for _ in range(2):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(10)
        sock.connect(str(door.path))
        visitors.append(ControlSocket(sock))
        assert isinstance(visitors[-1].receive(), Welcome)
    visitors[0].send(Join(max_nbytes=1))
    time.sleep(ANSWER_S / 5)
    visitors[1].send(Join(max_nbytes=1))
    assert isinstance(visitors[0].receive(), Joined)
    assert isinstance(visitors[1].receive(), Joined)
    guests.close()
    door.close()
    door.join()
    for visitor in visitors:
        visitor.close()


class Crowded:
    """A socket that is let in at the third try."""

    tries = 0

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def connect(self, address: str) -> None:
        self.tries += 1
        if self.tries < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")


def test_a_full_door_is_tried_again_until_the_deadline() -> None:
    sock = Crowded()
    attached._reach(sock, "/x", time.monotonic() + 5)  # type: ignore[arg-type]
    assert sock.tries == 3
    with pytest.raises(TransportError, match="did not answer in time"):
        attached._reach(Crowded(), "/x", time.monotonic() - 1)  # type: ignore[arg-type]
