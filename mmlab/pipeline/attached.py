"""A frontend's hold on an engine that it did not start: joins it, sees it end, leaves it.

The connection is made twice: once to learn what the engine is, so that an arena of the right size
and everything else can be made in peace, and once to join, which is one message each way. From then
on a thread waits for the end of the connection and for the engine's death. The engine's exit code
and output are its owner's to know.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from mmlab.errors import EngineError, TransportError, UsageError
from mmlab.pipeline import peer
from mmlab.pipeline.control import MAX_MESSAGE, ControlSocket
from mmlab.pipeline.messages import PROTOCOL, Control, Failed, Join, Joined, Ready, Stop, Welcome
from mmlab.transports.interrupts import uninterrupted
from mmlab.transports.limits import is_descriptor_limit
from mmlab.transports.links import MAX_PATH

JOIN_S = 5.0  # for the watching thread to end
DEATH_S = 0.5  # from the end of a connection to that of its process, which ends a little later
AGAIN_S = 0.01  # until the next try at a door where others stand in line
REMEDY = "take `address` of a pipeline whose engine runs"


def check_address(address: object) -> str:
    """The path of a control socket; UsageError for what cannot be one."""
    if not isinstance(address, str) or not address or "\0" in address:
        raise UsageError(f"address: got {address!r}, wanted a path: {REMEDY}")
    if "://" in address:
        raise UsageError(
            f"address: got {address!r}, wanted the path of a socket on this machine, whatever the "
            f"transport: {REMEDY}"
        )
    if (length := len(os.fsencode(address))) > MAX_PATH:
        raise UsageError(f"address: {length} bytes, a socket path is limited to {MAX_PATH}")
    return address


def ask(address: str, deadline: float) -> Welcome:
    """What the engine at `address` is, until `deadline` (time.monotonic); nothing is kept open.

    TransportError, with the address and what to do, where there is none, or it does not answer.
    """
    sock, welcome = _connect(address, deadline)
    sock.close()
    return welcome


class AttachedEngine:
    """An engine that was joined as frontend `number`. `on_exit` is called once, from the watching
    thread, when it has ended, or this link to it. `descriptor` is that of an arena, for an engine
    whose transport has one. Errors as those of `ask`."""

    exit_code: int | None = None  # only its parent is told

    def __init__(
        self,
        welcome: Welcome,
        max_nbytes: int,
        deadline: float,
        on_exit: Callable[[EngineError], None],
        descriptor: int | None = None,
    ) -> None:
        self._address = address = welcome.ready.address
        self._on_exit = on_exit
        with contextlib.ExitStack() as undo:
            sock, again = _connect(address, deadline)
            self._control = ControlSocket(sock)
            undo.callback(self._control.close)
            if again != welcome:
                _fail(address, "another engine listens there now", "attach again")
            join = Join(max_nbytes=max_nbytes)
            with contextlib.suppress(TransportError):  # what it said last tells why
                self._control.send(join, [] if descriptor is None else [descriptor])
            joined = _receive(sock, address, deadline)
            if not isinstance(joined, Joined):
                _fail(address, f"it answered with {type(joined).__name__}", REMEDY)
            self.number = joined.number
            self.pid = welcome.ready.pid
            self._ready = msgspec.structs.replace(welcome.ready, arena_nbytes=joined.arena_nbytes)
            sock.settimeout(None)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self._wake)
            self._pidfd = peer.open_pidfd(sock)
            if self._pidfd is not None:
                undo.callback(os.close, self._pidfd)
            self._fds = [self._wake, *([] if self._pidfd is None else [self._pidfd])]
            self._over = False
            self._thread = threading.Thread(
                target=self._watch, name="mmlab-engine-watch", daemon=True
            )
            with uninterrupted():  # the thread reads what would be closed
                self._thread.start()
                undo.pop_all()

    def output(self) -> str:
        """Nothing: what the engine writes goes to its owner."""
        return ""

    def wait_ready(self, timeout: float) -> Ready:
        """What the engine said when it was ready; it is, since it answers."""
        return self._ready

    def stop(self, *, patient: bool = True) -> None:
        """Leave it, at once. It goes on for the others. Idempotent, and after an interrupt the
        next call goes on."""
        if not self._over:
            os.eventfd_write(self._wake, 1)
            if threading.current_thread() is not self._thread:
                self._thread.join(JOIN_S)
            self._over = True
        self._control.hang_up()
        while self._fds:
            os.close(self._fds.pop())

    def _watch(self) -> None:
        poller = select.poll()
        control, pidfd = self._control.fileno(), self._pidfd
        for fd in (control, self._wake, *([] if pidfd is None else [pidfd])):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wake in ready:
                return
            how = f"engine (pid {self.pid}) has ended; its owner knows the exit code"
            if pidfd not in ready:
                message: Control | None = None
                with contextlib.suppress(TransportError):
                    message = self._control.receive()
                if isinstance(message, Stop):
                    how = f"engine (pid {self.pid}) ends: its owner has closed it"
                elif message is not None:
                    continue
                elif not self._is_dead():
                    how = f"engine (pid {self.pid}) has ended the link of frontend {self.number}"
            self._on_exit(EngineError(f"{how} (attached at {self._address})"))
            return

    def _is_dead(self) -> bool:
        if self._pidfd is None:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(DEATH_S * 1000))


class _Version(msgspec.Struct, tag="welcome"):
    """The part of a welcome that every version has."""

    protocol: int


def _connect(address: str, deadline: float) -> tuple[socket.socket, Welcome]:
    """Connected to the engine there, and welcomed."""
    _check_socket(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        try:
            _reach(sock, address, deadline)
        except TimeoutError:
            _silent(address)
        except OSError as error:
            if is_descriptor_limit(error):
                raise
            _fail(address, f"nobody answers there ({error})", REMEDY)
        _, uid = peer.credentials(sock)
        if uid != os.getuid():
            _fail(address, f"it is of user {uid}, this process of user {os.getuid()}", REMEDY)
        welcome = _receive(sock, address, deadline)
        if not isinstance(welcome, Welcome):
            _fail(address, f"it answered with {type(welcome).__name__}", REMEDY)
        ready = msgspec.structs.replace(welcome.ready, address=address)  # as it is seen from here
        return sock, msgspec.structs.replace(welcome, ready=ready)
    except BaseException:
        sock.close()
        raise


def _reach(sock: socket.socket, address: str, deadline: float) -> None:
    """Connect; where too many others want to, again and again until `deadline`."""
    while True:
        sock.settimeout(_left(address, deadline))
        try:
            sock.connect(address)
            return
        except BlockingIOError:
            time.sleep(AGAIN_S)


def _check_socket(address: str) -> None:
    try:
        mode = Path(address).stat().st_mode
    except OSError as error:
        _fail(address, f"no engine is there ({error.strerror})", REMEDY)
    if not stat.S_ISSOCK(mode):
        _fail(address, "it is no socket", REMEDY)


def _receive(sock: socket.socket, address: str, deadline: float) -> Control:
    """The next message before `deadline`. A refusal becomes a TransportError here."""
    sock.settimeout(_left(address, deadline))
    theirs = PROTOCOL
    try:
        data = sock.recv(MAX_MESSAGE, socket.MSG_PEEK)
        with contextlib.suppress(msgspec.MsgspecError):
            theirs = msgspec.msgpack.decode(data, type=_Version).protocol
        message = ControlSocket(sock).receive() if theirs == PROTOCOL else None
    except TimeoutError:
        _silent(address)
    except ConnectionError:
        message = None
    except TransportError as error:
        _fail(address, str(error), REMEDY)
    if theirs != PROTOCOL:
        versions = f"it speaks protocol {theirs}, this mmlab {PROTOCOL}"
        _fail(address, versions, "use the same version of mmlab on both sides")
    if message is None:
        _fail(address, "the engine has ended, or hung up", REMEDY)
    if isinstance(message, Failed):
        why = f"the engine refused: {message.message}"
        _fail(address, why, "its owner finds more in engine_output")
    return message


def _left(address: str, deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        _silent(address)
    return left


def _silent(address: str) -> NoReturn:
    _fail(address, "it did not answer in time", "raise start_timeout if it is only busy")


def _fail(address: str, why: str, remedy: str) -> NoReturn:
    raise TransportError(f"cannot attach to {address}: {why}; {remedy}")
