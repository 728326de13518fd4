"""Run the measurement, in the environment where the peer is installed if one is asked for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import mmlab
from mmlab.bench.wire.__main__ import MISSING
from mmlab.errors import MMLabError, UsageError

PEERS = ("vllm",)


def peer_python(given: Path | None) -> str:
    """The python in whose environment vLLM lives: the given one, `.venv-peer`'s, or this one."""
    if given is not None:
        if not given.is_file():
            raise UsageError(f"--peer-python {given}: no such file")
        return str(given)
    beside = Path(mmlab.__file__).parents[1] / ".venv-peer" / "bin" / "python"
    if beside.is_file():
        return str(beside)
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    raise UsageError(
        "vLLM is not installed here and there is no .venv-peer: run `make peer`, or name an "
        "environment that has it with --peer-python"
    )


def run(
    python: str, *, peer: str | None, sweep: bool, seconds: float, seed: int, threads: int
) -> Iterator[dict[str, object]]:
    """The rows as they are measured; progress goes to standard error.

    Before them come {"peer": its name and version}, if there is one, and {"environment": ...}.
    """
    arguments = ["--seconds", str(seconds), "--seed", str(seed), "--threads", str(threads)]
    arguments += ["--peer", peer] if peer else []
    arguments += ["--sweep"] if sweep else []
    return rows_of(python, "mmlab.bench.wire", arguments)


def rows_of(
    python: str, module: str, arguments: Sequence[str], grace_s: float = 0.0
) -> Iterator[dict[str, object]]:
    """What `python -m module` prints, a JSON object a line. Whoever stops early ends it: by
    SIGTERM, if it has `grace_s` seconds to clean up, then by SIGKILL."""
    path = str(Path(mmlab.__file__).parents[1])
    rest = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{rest}" if rest else path}
    with subprocess.Popen(
        [python, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            code = process.wait()
        finally:
            if process.poll() is None and grace_s:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace_s)
            if process.poll() is None:
                process.kill()
    if code == MISSING:
        raise UsageError(f"the environment of {python} lacks what is named above")
    if code:
        raise MMLabError(f"the measurement ended with exit code {code}; its output is above")
