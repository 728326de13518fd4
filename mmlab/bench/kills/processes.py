"""The processes of a trial as the controller holds them: by pidfd, so never by a pid used twice."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmlab.bench.kills.line import Line
from mmlab.bench.launch import trial_variables
from mmlab.pipeline.process import engine_environment

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # prctl.h


class Held:
    """One process, ours or an orphan that is going to be; `close` ends it if it still runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._exit_code: int | None = None

    def fileno(self) -> int:
        return self._pidfd

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def ended(self, timeout: float = 0.0) -> bool:
        """Whether it has, within `timeout` seconds."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))

    def exit_code(self) -> int | None:
        """Of an ended process that is our child, by birth or by its parent's death; -N: signal."""
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def close(self) -> None:
        if self._pidfd >= 0:
            if not self.ended():
                self.kill()
                self.ended(5.0)
            self.exit_code()
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)


class Frontend(Held):
    """A frontend process that was started here, with `mark` as its temporary directory."""

    def __init__(self, path: str, mark: Path, output: IO[bytes]) -> None:
        self._popen = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "mmlab.bench.kills.frontend"),
                *(str(os.getpid()), path),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=trial_variables() | engine_environment(1) | {"TMPDIR": str(mark)},
        )
        super().__init__(self._popen.pid)
        self._line: Line | None = None

    @property
    def line(self) -> Line:
        assert self._line is not None  # `meet` comes first
        return self._line

    def meet(self, line: Line) -> None:
        """The connection that it has made."""
        self._line = line

    def exit_code(self) -> int | None:
        return self._popen.poll()

    def close(self) -> None:
        super().close()
        self._popen.wait()
        if self._line is not None:
            self._line.close()


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Children of a killed child become ours, so that their exit codes can be read."""
    before = ctypes.c_int(0)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
