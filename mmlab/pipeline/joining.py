"""The engine's door: where frontends other than its owner come in.

A listening socket in the private directory. Whoever connects is told at once what there is to match
(`Welcome`), and answers with one message (`Join`, with the descriptor of its arena) or goes. Nobody
is waited for: visitors stand side by side, each for a bounded time. A thread of its own does that,
because mapping a large arena takes a while, in which the watchdog must not be blind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from pathlib import Path
from typing import Final

from mmlab.errors import TransportError
from mmlab.pipeline import peer
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.guests import Guests
from mmlab.pipeline.messages import ARENA, PROTOCOL, Control, Failed, Join, Welcome

DOOR: Final = "ctl"  # name of the socket in the private directory
MAX_VISITORS: Final = 64  # who have connected and not answered; the oldest makes room
ANSWER_S: Final = 5.0  # a visitor has all it needs for its answer before it connects
PAUSE_S: Final = 0.2  # until the next accept() where this process has no descriptor free

log = logging.getLogger("mmlab.engine")


class _Visitor:
    """A connection that has been welcomed and has not answered."""

    def __init__(self, sock: socket.socket, answer_s: float) -> None:
        self.sock = sock
        self.control = ControlSocket(sock)
        self.deadline = time.monotonic() + answer_s


class Door:
    """Listens at `path` from its creation on, and answers from `open` to `close`."""

    def __init__(self, path: Path, guests: Guests, answer_s: float = ANSWER_S) -> None:
        self.path = path
        self._guests = guests
        self._answer_s = answer_s
        self._visitors: dict[int, _Visitor] = {}  # by descriptor, the oldest first
        self._closed = False
        self._paused_until = 0.0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.setblocking(False)
            self._listener.bind(str(path))
            self._listener.listen(MAX_VISITORS)
        except OSError as error:
            self._listener.close()
            raise TransportError(f"cannot listen at {path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="mmlab-door", daemon=True)

    def open(self, welcome: Welcome) -> None:
        """From now on whoever connects is told this. Once."""
        self._welcome = welcome
        self._thread.start()

    def close(self) -> None:
        """From any thread: nobody comes in any more."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def join(self) -> None:
        """Wait until it is closed."""
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            listener = self._listener.fileno()
            ready = self._wait(listener)
            now = time.monotonic()  # whoever is heard below was in time, however long it takes
            for fd in ready & self._visitors.keys():
                self._hear(self._visitors[fd])
            if listener in ready:
                self._accept()
            for visitor in [v for v in self._visitors.values() if v.deadline <= now]:
                self._refuse(visitor, f"nothing came within {self._answer_s} s")
        for visitor in list(self._visitors.values()):
            self._refuse(visitor, "the engine ends")
        self._listener.close()

    def _wait(self, listener: int) -> set[int]:
        """Descriptors where something has happened; none when it is time for something else."""
        now = time.monotonic()
        times = [visitor.deadline for visitor in self._visitors.values()]
        poller = select.poll()
        for fd in self._visitors:
            poller.register(fd, select.POLLIN)
        if now < self._paused_until:
            times.append(self._paused_until)
        else:
            poller.register(listener, select.POLLIN)
        timeout = max(0.0, min(times) - now) * 1000 + 1 if times else None
        return {fd for fd, _ in poller.poll(timeout)}

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError as error:
            if not self._closed:
                log.warning("no frontend can be let in: %s", error)
                self._paused_until = time.monotonic() + PAUSE_S
            return
        sock.setblocking(False)
        visitor = _Visitor(sock, self._answer_s)
        if len(self._visitors) >= MAX_VISITORS:
            self._refuse(next(iter(self._visitors.values())), "others came, and it said nothing")
        self._visitors[sock.fileno()] = visitor
        try:
            _, uid = peer.credentials(sock)
            if uid != os.getuid():
                raise TransportError(f"it is of user {uid}, the engine of user {os.getuid()}")
            visitor.control.send(self._welcome)
        except (TransportError, OSError) as error:
            self._refuse(visitor, str(error))

    def _hear(self, visitor: _Visitor) -> None:
        """Take the one message of a visitor, and let it in."""
        fds: list[int] = []
        try:
            message, fds = visitor.control.receive_with_descriptors()
            if message is None:  # it only wanted to know
                self._forget(visitor)
            else:
                self._let_in(visitor, message, fds)
        except Exception as error:  # whatever one of them does, it ends neither door nor engine
            self._refuse(visitor, str(error))
        finally:
            for fd in fds:
                os.close(fd)

    def _let_in(self, visitor: _Visitor, message: Control, fds: list[int]) -> None:
        if not isinstance(message, Join) or message.protocol != PROTOCOL:
            raise TransportError(f"its answer is no Join of protocol {PROTOCOL}: {message!r:.200}")
        wanted = int(self._welcome.config.transport == ARENA)
        if len(fds) != wanted:
            raise TransportError(f"{len(fds)} descriptors came with its answer, wanted {wanted}")
        if message.max_nbytes < 1:
            raise TransportError(f"its budget is {message.max_nbytes} bytes, wanted 1 or more")
        self._guests.let_in(visitor.sock, message.max_nbytes, fds[0] if fds else None)
        self._visitors = {n: v for n, v in self._visitors.items() if v is not visitor}

    def _refuse(self, visitor: _Visitor, why: str) -> None:
        log.warning("a frontend is refused: %s", why)
        with contextlib.suppress(TransportError):
            visitor.control.send(Failed(error="TransportError", message=why, trace=""))
        self._forget(visitor)

    def _forget(self, visitor: _Visitor) -> None:
        self._visitors = {n: v for n, v in self._visitors.items() if v is not visitor}
        visitor.control.close()
