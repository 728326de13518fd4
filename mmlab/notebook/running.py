"""Running a notebook through papermill, so that a failed notebook is a failed run.

What papermill leaves open is closed here: parameters are checked before a kernel starts, a failure
raises one error that names the cell and the file with the partial output, a kernel that was killed
counts as a failure too, and a nan among the parameters does not make the file unreadable.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmlab.errors import MMLabError, UsageError
from mmlab.notebook import cell, finding
from mmlab.pipeline.directory import PrivateDirectory

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager


class NotebookError(MMLabError):
    """A notebook failed. `output` is the file with what ran until then, `ename` its error."""

    def __init__(self, message: str, output: Path, ename: str) -> None:
        super().__init__(f"{message}; what ran until then is in {output}")
        self.output = output
        self.ename = ename


def execute(
    name_or_path: str | os.PathLike[str],
    parameters: Mapping[str, object] | None = None,
    out_dir: str | os.PathLike[str] = ".",
    log: bool = True,
) -> Path:
    """Run a notebook top to bottom in a fresh kernel of this Python. Returns the executed file.

    A notebook with a parameter `out_dir` gets this one's absolute path, unless it is among the
    given ones. `log`: what the notebook prints is shown on stderr as it comes. UsageError before
    anything is started where a parameter is unknown or of the wrong type; NotebookError where a
    cell fails or the kernel dies.
    """
    source = finding.find(name_or_path)
    values = cell.check(source, parameters or {})
    folder = Path(out_dir).resolve()
    output = folder / source.name
    if output == source.resolve():
        raise UsageError(f"out_dir {folder} is where {source.name} itself is: name another one")
    if "out_dir" in cell.parameters(source):
        values.setdefault("out_dir", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    try:
        contextvars.Context().run(_with_own_loop, source, output, values, log)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):  # what went wrong comes first
            _make_readable(output)
        if isinstance(error, OSError):
            raise NotebookError(
                f"{folder}: {error.strerror or error}", output, "OSError"
            ) from error
        raise
    _make_readable(output)
    _require_all_ran(source, output)
    return output


def _with_own_loop(source: Path, output: Path, values: Mapping[str, object], log: bool) -> None:
    """Jupyter's client keeps an event loop in its context and never closes it: this one is ours."""
    from jupyter_core.utils import ensure_event_loop

    try:
        _papermill(source, output, values, log)
    finally:
        try:
            asyncio.get_running_loop()  # called from a notebook: it stays its kernel's
        except RuntimeError:
            loop = ensure_event_loop()
            for task in (pending := asyncio.all_tasks(loop)):  # after Ctrl-C
                task.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            loop.close()
            asyncio.set_event_loop(None)


def _papermill(source: Path, output: Path, values: Mapping[str, object], log: bool) -> None:
    import papermill
    from nbclient.exceptions import CellControlSignal, DeadKernelError
    from papermill.log import logger

    stream = sys.stderr if log else None
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what it would say is in the errors below
    try:
        with contextlib.closing(PrivateDirectory()) as sockets:
            papermill.execute_notebook(
                _escaped(source),
                _escaped(output),
                parameters=dict(values),
                kernel_name="python3",
                progress_bar=False,
                stdout_file=stream,
                stderr_file=stream,
                kernel_manager_class=_kernel_manager(sockets.path),
            )
    except papermill.PapermillExecutionError as error:
        line = error.source.strip().split("\n")[0]
        raise NotebookError(
            f"{source.name} failed in the cell [{error.exec_count}] that starts with {line!r}: "
            f"{error.ename}: {error.evalue}",
            output,
            error.ename,
        ) from error
    except (DeadKernelError, CellControlSignal, RuntimeError) as error:
        kind = type(error).__name__
        raise NotebookError(
            f"{source.name}: its kernel ended ({kind}: {error})", output, kind
        ) from error
    finally:
        logger.setLevel(level)


def _kernel_manager(folder: Path) -> type[AsyncKernelManager]:
    """Kernels that talk over Unix sockets in `folder`: no port that two of them could both take."""
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import Unicode

    class UnixKernelManager(AsyncKernelManager):
        transport = Unicode("ipc")
        connection_file = Unicode(str(folder / "k.json"))

    return UnixKernelManager if os.name == "posix" else AsyncKernelManager


def _require_all_ran(source: Path, output: Path) -> None:
    """A cell that calls `sys.exit(0)` ends a notebook early, and papermill calls that a success."""
    for place, one in enumerate(finding.load(output)["cells"]):
        code = one["cell_type"] == "code" and one["source"].strip()
        if code and one["execution_count"] is None:
            message = f"{source.name} ended before cell {place}, without an error"
            raise NotebookError(message, output, "SystemExit")


def _escaped(path: Path) -> str:
    """Papermill formats its paths with the parameters: braces in a folder's name stay braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _make_readable(output: Path) -> None:
    """Turn nan and inf in the file into text: JSON has none, and JupyterLab would not open it."""
    if not output.is_file():
        return
    document = json.loads(output.read_text(encoding="utf-8"))
    written = json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    draft.write_text(written, encoding="utf-8")
    draft.replace(output)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
