"""The frontends that are attached to an engine beside its owner: let in, watched, let go.

Each is seen to leave by the end of its connection (it closed, or died) and by its pidfd (it died,
but a fork still holds its descriptors); both wait in the watchdog's poller. What is then let go is
its own only: requests, arena, number. A number is never used again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from mmlab.errors import TransportError
from mmlab.pipeline import peer
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.lifecycle import Watchdog
from mmlab.pipeline.messages import LAST_NUMBER, OWNER, Joined, Stop

MAX_FRONTENDS: Final = 64  # at a time, beside the owner

Admit = Callable[[int, int, int | None], int]  # number, max_nbytes, descriptor -> arena's bytes
Leave = Callable[[int], None]

log = logging.getLogger("mmlab.engine")


class _Guest:
    """The connection to a frontend, and its pidfd where there is one."""

    def __init__(self, control: ControlSocket, pidfd: int | None) -> None:
        self.control = control
        self.pidfd = pidfd
        self.fds = [control.fileno(), *([] if pidfd is None else [pidfd])]

    def has_ended(self) -> bool:
        """Whether it is dead, has closed, or says anything: nothing more is asked of it."""
        poller = select.poll()
        for fd in self.fds:
            poller.register(fd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        self.control.hang_up()
        if self.pidfd is not None:
            os.close(self.pidfd)


class Guests:
    """`admit` makes room for a frontend (what it raises refuses it), `leave` forgets it."""

    def __init__(
        self, watchdog: Watchdog, admit: Admit, leave: Leave, most: int = MAX_FRONTENDS
    ) -> None:
        self._watchdog = watchdog
        self._admit = admit
        self._leave = leave
        self._most = most
        self._numbers = itertools.count(OWNER + 1)
        self._in: dict[int, _Guest] = {}
        self._lock = threading.Lock()
        self._closed = False

    def let_in(self, sock: socket.socket, max_nbytes: int, descriptor: int | None) -> None:
        """Whoever is at the other end of `sock`, which is this object's from then on. Otherwise:
        TransportError, or what `admit` raises."""
        if len(self._in) >= self._most:
            raise TransportError(
                f"{len(self._in)} frontends are attached and {self._most} may be: close one first"
            )
        number = next(self._numbers)
        if number > LAST_NUMBER:
            raise TransportError("all numbers of frontends are used up: start another engine")
        arena_nbytes = self._admit(number, max_nbytes, descriptor)
        control = ControlSocket(sock)
        try:
            with self._lock:
                if self._closed:
                    raise TransportError("the engine ends")
                guest = self._in[number] = _Guest(control, peer.open_pidfd(sock))
                for fd in guest.fds:
                    self._watchdog.watch(fd, partial(self._look, number))
        except BaseException:
            if not self._let_go(number):
                self._leave(number)
            raise
        log.info("frontend %d is attached", number)
        with contextlib.suppress(TransportError):  # it is gone already: the watchdog sees it
            control.send(Joined(number=number, arena_nbytes=arena_nbytes))

    def close(self) -> None:
        """From any thread: nobody is let in any more, and all are told that the engine ends."""
        with self._lock:
            self._closed = True
        for number, guest in list(self._in.items()):
            with contextlib.suppress(TransportError):
                guest.control.send(Stop())
            self._let_go(number)

    def _look(self, number: int) -> None:
        """In the watchdog's thread. The news may be old: of a descriptor that had the number of
        this guest's before it."""
        with self._lock:
            guest = self._in.get(number)
            ended = guest is not None and guest.has_ended()
        if ended:
            self._let_go(number)

    def _let_go(self, number: int) -> bool:
        """Once for each, by whoever is first: True then."""
        with self._lock:
            guest = self._in.pop(number, None)
            if guest is None:
                return False
            for fd in guest.fds:
                self._watchdog.unwatch(fd)
            guest.close()
        self._leave(number)
        log.info("frontend %d has left", number)
        return True
