"""`python -m mmlab.bench.wire`: the measurement itself, one JSON row a line on standard output.

`mmlab bench wire --peer vllm` runs it with the python of the environment in which vLLM lives, so
that vLLM's pinned versions and mmlab's need not agree. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time

import msgspec
import torch

from mmlab.bench.wire.cases import sweep_cases, table_cases
from mmlab.bench.wire.report import nbytes_text
from mmlab.bench.wire.timing import measure
from mmlab.measure import environment

MISSING = 3  # exit code where the environment lacks something, which is then said


def main() -> int:
    """Measure, print rows."""
    parser = argparse.ArgumentParser(prog="python -m mmlab.bench.wire", description=__doc__)
    parser.add_argument("--peer", choices=["vllm"])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each message")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on both sides")
    options = parser.parse_args()
    if importlib.util.find_spec("scipy") is None:
        print("scipy is not installed: pip install 'mmlab[notebooks]'", file=sys.stderr)
        return MISSING
    torch.set_num_threads(options.threads)
    peer = None
    if options.peer:
        from mmlab.bench.peers import vllm_wire

        if not vllm_wire.available():
            print("vLLM is not installed: run `make peer`", file=sys.stderr)
            return MISSING
        peer = vllm_wire.VllmWire()
        print(json.dumps({"peer": f"vllm {peer.version}"}), flush=True)
    record = msgspec.to_builtins(environment.collect())
    print(json.dumps({"environment": {**record, "torch_threads": options.threads}}), flush=True)
    builders = list(sweep_cases(peer) if options.sweep else table_cases(peer))
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    for i, build in enumerate(builders, 1):
        case = build()
        size = f", {case.tensors} x {nbytes_text(case.tensor_nbytes)}" if options.sweep else ""
        say(f"{i} of {len(builders)}: {case.name}{size} ...")
        for row in measure(case, seconds=options.seconds, seed=options.seed):
            print(json.dumps(row), flush=True)
        del case
        gc.collect()
    say("done")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
