"""Where a checkpoint lies: a directory, or a repository of the hub that is fetched or in its cache.

The small files come first and say which family it is, so that another one is refused before
gigabytes of weights are on their way.
"""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mmlab.errors import UsageError, unknown

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SMALL_FILES: Final = ["*.json", "*.model", "*.jinja"]
WEIGHTS: Final = ["*.safetensors"]
CONNECT_TIMEOUT_S: Final = 3.0


def locate(name: str, families: Iterable[str], presets: Iterable[str], *, weights: bool) -> Path:
    """The directory of checkpoint `name`. UsageError if there is none, or it is of no known family.

    A directory wins over a hub id of the same name; `weights` says whether they are needed too.
    """
    path = Path(name).expanduser()
    if name and path.is_dir():  # Path("") is the current directory
        family_of(name, path, families)
        return path
    if HUB_ID.fullmatch(name):
        small = _fetch(name, SMALL_FILES)
        family_of(name, small, families)
        return _fetch(name, SMALL_FILES + WEIGHTS) if weights else small
    if name and (path.exists() or path.is_absolute() or name.startswith((".", "~"))):
        what = "is a file" if path.exists() else "does not exist"
        raise UsageError(f"model {name!r}: {what}, wanted a directory with a checkpoint")
    raise unknown("model", name, [*presets, "a directory", "a hub id owner/name"])


def family_of(name: str, path: Path, families: Iterable[str]) -> str:
    """The `model_type` of a checkpoint, if it is a known family."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        got = config.get("model_type")
    except FileNotFoundError:
        raise UsageError(f"model {name!r}: has no config.json, so it is no checkpoint") from None
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"model {name!r}: its config.json cannot be read: {error}") from error
    if got not in families:
        known = ", ".join(families)
        raise UsageError(f"model {name!r}: is a {got!r} checkpoint, supported are: {known}")
    return str(got)


def _fetch(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import constants, snapshot_download

    reason = _offline_reason()  # the hub's own client tries for 23 s before it gives up
    try:
        path = snapshot_download(name, allow_patterns=patterns, local_files_only=reason is not None)
    except Exception as error:
        why = str(error).strip().split("\n")[0]
        if reason is not None:
            why = f"it is not in the local cache, and {constants.ENDPOINT} is not used: {reason}"
        raise UsageError(
            f"model {name!r}: {why}; a directory with the checkpoint works without a network"
        ) from error
    return Path(path)


def _offline_reason() -> str | None:
    """Why the hub will not be asked, or None where it seems to be there."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if urllib.request.getproxies():
        return None  # only the proxy knows
    url = urlsplit(constants.ENDPOINT)
    address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    try:
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"no connection ({error})"
    return None


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn whatever a library says about a broken checkpoint into one line with its name."""
    try:
        yield
    except Exception as error:
        why = str(error).strip().split("\n")[0] or type(error).__name__
        raise UsageError(f"model {name!r}: cannot be loaded: {why}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers, which tear logs apart."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
