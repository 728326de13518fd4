"""The checkout under test: its files, and commands run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOT_OURS = {".git", ".venv", ".venv-peer", "runs", "build", "dist", "__pycache__"}
NOT_OURS |= {".ipynb_checkpoints", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS:
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(command: Sequence[str], cwd: Path = ROOT, **env: str) -> str:
    """Its standard output; a command that fails fails the test, with what it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(*arguments: str, cwd: Path = ROOT, **env: str) -> str:
    return run([sys.executable, *arguments], cwd, **env)


def make(*arguments: str) -> str:
    """As called by hand: nothing of a make that may be running these tests gets through."""
    return run(["make", *arguments], MAKEFLAGS="", MFLAGS="", MAKELEVEL="0", ARGS="", PYTHON="")
