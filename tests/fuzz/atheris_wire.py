r"""The decoder under libFuzzer, guided by the coverage of mmlab: run by hand, for a new wire.

    python -m venv /tmp/atheris && /tmp/atheris/bin/pip install atheris   # once, on Python 3.11
    printf "%s\n" "$PWD/.venv/lib/python3.11/site-packages" "$PWD" \
        > /tmp/atheris/lib/python3.11/site-packages/mmlab.pth
    mkdir -p /tmp/found
    /tmp/atheris/bin/python tests/fuzz/atheris_wire.py /tmp/found tests/corpus \
        -max_total_time=600 -max_len=768 -timeout=60 -rss_limit_mb=6000
    python tests/fuzz/fuzz_choose.py tests/corpus /tmp/found

What it keeps under /tmp/found are inputs of `fuzz_build.build`; the last line puts a small choice
of them into tests/corpus, which the tests replay without atheris.
"""

from __future__ import annotations

import sys
import zlib

import atheris
import msgspec  # noqa: F401  (these four must be imported before anything is instrumented)
import numpy as np  # noqa: F401
import torch  # noqa: F401
import zmq  # noqa: F401

with atheris.instrument_imports(include=["mmlab"]):
    import mmlab  # noqa: F401

from fuzz_build import build
from fuzz_check import Checker, Finding, Often
from fuzz_worker import prepare

# the memory checks take longest; libFuzzer's own limit on memory stands behind them
checker = Checker(Often(read=3, again=5, resident=97, traced=149))


def one_input(data: bytes) -> None:
    kind, frames = build(data)
    try:
        checker.check(frames, kind, zlib.crc32(data))
    except Finding as finding:
        print(f"FOUND {finding.kind}: {finding}", file=sys.stderr)
        raise


if __name__ == "__main__":
    prepare()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
