"""The engine as a process: started as a fresh interpreter, watched, and ended for certain.

A fresh interpreter (no fork, no `multiprocessing`): CUDA may already be in use here, `__main__` may
be a notebook or a script without a main guard, and no resource tracker comes along. It gets a
session of its own, so that Ctrl-C in a terminal reaches the frontend only, which then closes the
engine in order. One thread watches its pidfd, its control socket and its output.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from mmlab.errors import EngineError, TransportError
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.messages import OWNER, Control, EngineConfig, Failed, Ready, Stop
from mmlab.transports.limits import is_descriptor_limit

ENGINE_ARGS: tuple[str, ...] = (
    "-P",
    "-m",
    "mmlab.pipeline.child",
)  # -P: nothing from the working directory
TAIL_NBYTES = 8 * 1024  # how much of the engine's output is kept
STOP_S, TERM_S, KILL_S = 1.5, 1.0, 5.0  # waits after asking, SIGTERM and SIGKILL

log = logging.getLogger("mmlab.pipeline")


def engine_environment(threads: int | None) -> dict[str, str]:
    """The environment in which a child imports the same mmlab as this process."""
    env = dict(os.environ, PYTHONFAULTHANDLER="1")
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH", "")]))
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def _start(control: ControlSocket, threads: int | None) -> tuple[subprocess.Popen[bytes], int]:
    """The process, which inherits `control`, and the end of a pipe that reads what it writes."""
    output, their_output = os.pipe()
    try:
        engine = subprocess.Popen(
            [sys.executable, *ENGINE_ARGS, str(control.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=their_output,
            stderr=their_output,
            pass_fds=[control.fileno()],
            start_new_session=True,
            env=engine_environment(threads),
        )
    except BaseException as error:
        os.close(output)
        if isinstance(error, OSError) and not is_descriptor_limit(error):
            message = f"cannot start an engine with {sys.executable}: {error}"
            raise EngineError(message) from error
        raise
    finally:
        os.close(their_output)
    return engine, output


class EngineProcess:
    """A started engine. `on_exit` is called once, from the watching thread, when it has ended.

    `descriptor` is that of an arena, for an engine whose transport has one.
    """

    number = OWNER  # whoever has started it

    def __init__(
        self,
        config: EngineConfig,
        on_exit: Callable[[EngineError], None],
        descriptor: int | None = None,
    ) -> None:
        self._on_exit = on_exit
        self._ready: Future[Ready] = Future()
        self._failure: Failed | None = None
        self._tail = b""
        self._over = False  # from here on only files are closed
        with contextlib.ExitStack() as undo:
            self._control, theirs = ControlSocket.pair()
            undo.callback(self._control.close)
            with contextlib.closing(theirs):
                self._popen, self._output = _start(theirs, config.threads)
            undo.callback(os.close, self._output)
            undo.callback(self._popen.wait)
            undo.callback(self._popen.kill)  # not reaped yet, so the pid is certainly its own
            self.pid = self._popen.pid
            self._pidfd = os.pidfd_open(self.pid)
            undo.callback(os.close, self._pidfd)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self._wake)
            os.set_blocking(self._output, False)
            with contextlib.suppress(TransportError):  # it may be gone already: the thread will see
                self._control.send(config)
                if descriptor is not None:
                    self._control.send_descriptor(descriptor)
            self._thread = threading.Thread(
                target=self._watch, name="mmlab-engine-watch", daemon=True
            )
            self._thread.start()
            undo.pop_all()
        self._fds = [self._output, self._pidfd, self._wake]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N if signal N ended it."""
        return self._popen.returncode

    def output(self) -> str:
        """The last kilobytes that it wrote to stdout and stderr."""
        return self._tail.decode(errors="replace")

    def wait_ready(self, timeout: float) -> Ready:
        """EngineError if it ends, fails or stays silent before it is ready."""
        try:
            return self._ready.result(timeout)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            self._wait(KILL_S)
            raise EngineError(
                f"engine (pid {self.pid}) was not ready within {timeout} s and has been ended; "
                f"raise start_timeout if it only needs longer{self._said()}",
                self.exit_code,
            ) from None

    def stop(self, *, patient: bool = True) -> None:
        """End it: ask, then SIGTERM, then SIGKILL, each with a bounded wait; SIGKILL at once
        without patience. Idempotent, and after an interrupt the next call goes on."""
        if not self._over:
            self._end(patient=patient)
            os.eventfd_write(self._wake, 1)
            if threading.current_thread() is not self._thread:
                self._thread.join(KILL_S)
            self._over = True
        self._control.close()
        while self._fds:
            os.close(self._fds.pop())

    def _end(self, *, patient: bool) -> None:
        if not self._wait(0):
            gentle = ((None, STOP_S), (signal.SIGTERM, TERM_S)) if patient else ()
            if patient:
                with contextlib.suppress(TransportError):
                    self._control.send(Stop())
            for number, seconds in (*gentle, (signal.SIGKILL, KILL_S)):
                if number is not None:
                    self._signal(number)
                if self._wait(seconds):
                    break
            else:
                log.warning("engine (pid %d) did not end within %s s of SIGKILL", self.pid, KILL_S)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def _wait(self, timeout: float) -> bool:
        """Whether it has ended within `timeout` seconds; reaps it."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        if not poller.poll(timeout * 1000):
            return False
        self._popen.wait()
        return True

    def _watch(self) -> None:
        poller = select.poll()
        for fd in (self._pidfd, self._control.fileno(), self._output, self._wake):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._output in ready and not self._read_output():
                poller.unregister(self._output)
            if self._control.fileno() in ready and not self._read_control():
                poller.unregister(self._control.fileno())
            if self._pidfd in ready:
                self._ended()
                return
            if self._wake in ready:
                return

    def _read_output(self) -> bool:
        """Keep what it wrote; False at end-of-file."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 64 * 1024):
                self._tail = (self._tail + data)[-TAIL_NBYTES:]
            return False
        return True

    def _read_control(self) -> bool:
        """Take one message; False at end-of-file or after one that cannot be read."""
        try:
            message: Control | None = self._control.receive()
        except TransportError as error:
            log.warning("engine (pid %d): %s", self.pid, error)
            return False
        if isinstance(message, Ready) and not self._ready.done():
            self._ready.set_result(message)
        elif isinstance(message, Failed):
            self._failure = message
        return message is not None

    def _ended(self) -> None:
        self._popen.wait()
        self._read_output()
        while self._failure is None and self._control.pending() and self._read_control():
            pass
        error = self._death()
        if not self._ready.done():
            self._ready.set_exception(error)
        self._on_exit(error)

    def _death(self) -> EngineError:
        code = self._popen.returncode
        when = "" if self._ready.done() else " during start"
        how = f"ended with exit code {code}{when}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}{when} (exit code {code})"
        if self._failure is not None:
            why = f"{self._failure.error}: {self._failure.message}\n{self._failure.trace}"
            return EngineError(f"engine (pid {self.pid}) {how}: {why}", code)
        return EngineError(f"engine (pid {self.pid}) {how}{self._said()}", code)

    def _said(self) -> str:
        said = self.output().strip()
        return f"; the last it wrote:\n{said}" if said else "; it wrote nothing"
