"""Run the measurement, in the environment where the peer is installed if one is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from mmlab.bench.wire.launch import rows_of

_GRACE_S = 10.0  # for the controller to end its pairs, which may be in the middle of a message


def run(
    python: str,
    *,
    peer: str | None,
    ways: Sequence[str],
    images: Sequence[int],
    sustained: Sequence[int],
    full: bool,
    dtypes: Sequence[str],
    image_size: int,
    seconds: float,
    seed: int,
    threads: int,
) -> Iterator[dict[str, object]]:
    """The rows of each case when it is measured; progress goes to standard error.

    Before them come {"peer": its name and version, or None} and {"environment": ...}.
    """
    arguments = ["--parent", str(os.getpid()), "--seconds", str(seconds), "--seed", str(seed)]
    arguments += ["--threads", str(threads), "--image-size", str(image_size)]
    arguments += ["--images", *map(str, images), "--dtypes", *dtypes, "--ways", *ways]
    arguments += ["--sustained", *map(str, sustained), *(["--full"] if full else [])]
    arguments += ["--peer", peer] if peer else []
    return rows_of(python, "mmlab.bench.transfer", arguments, grace_s=_GRACE_S)
