"""`python -m mmlab.bench.transfer`: the controller; one JSON row a line on standard output.

`mmlab bench transfer --peer vllm` runs it, and by it all the pairs, with the python of the
environment in which vLLM lives. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.pair import Pair
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.plan import cases, requests
from mmlab.bench.transfer.process import follow_parent
from mmlab.bench.transfer.sustained import measure_streams
from mmlab.bench.transfer.timing import Row, measure
from mmlab.bench.transfer.ways import LIMIT, NAMES, WAYS, Way, chosen
from mmlab.bench.wire.__main__ import MISSING
from mmlab.errors import MMLabError
from mmlab.measure import environment


def main() -> int:
    """Measure, print rows."""
    parser = argparse.ArgumentParser(prog="python -m mmlab.bench.transfer", description=__doc__)
    parser.add_argument("--parent", type=int, help="the process to end with")
    parser.add_argument("--peer", choices=["vllm"])
    parser.add_argument("--ways", nargs="+", choices=NAMES)
    parser.add_argument("--images", nargs="+", type=int, default=[1, 4, 8, 16, 32])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "uint8"])
    parser.add_argument("--image-size", type=int, default=896)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size and dtype")
    parser.add_argument("--sustained", nargs="*", type=int, default=[8], help="images")
    parser.add_argument("--full", action="store_true", help="larger messages by pickle")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in every process")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if options.parent is not None:
        follow_parent(options.parent, signal.SIGTERM)
    for module, remedy in (("scipy", "pip install 'mmlab[notebooks]'"), ("vllm", "`make peer`")):
        if (module != "vllm" or options.peer) and importlib.util.find_spec(module) is None:
            print(f"{module} is not installed: {remedy}", file=sys.stderr)
            return MISSING
    ways = chosen(options.ways, bool(options.peer))
    plan = cases(options.images, options.dtypes, options.image_size)
    plan += requests(options.dtypes, options.image_size) if any(w.request for w in ways) else []
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    say(f"starting {len(grouped(ways))} pairs of processes for {len(ways)} ways ...")
    with started(ways, options.threads) as pairs:
        print(json.dumps({"peer": next((p.ready.peer for p in pairs if p.ready.peer), None)}))
        record = msgspec.to_builtins(environment.collect())
        record["torch_threads"] = options.threads
        record["malloc_tuned"] = all(p.ready.tuned for p in pairs if p.tuned)
        print(json.dumps({"environment": record}), flush=True)
        draw = random.Random(options.seed)
        how = {"seconds": options.seconds, "draw": draw, "full": options.full}
        for i, case in enumerate(plan, 1):
            say(f"{i} of {len(plan)}: {_words(case)} ...")
            _print(measure(pairs, case, **how), say)
            if case.images in options.sustained and not case.tokens:
                say(f"{i} of {len(plan)}: {_words(case)}, two in flight ...")
                _print(measure_streams(pairs, case, **how), say)
    say("done")
    return 0


def _words(case: Case) -> str:
    size = f"{case.images} x {case.dtype}, {nbytes_of(case) / 1e6:.3g} MB a message"
    if case.tokens:
        return f"a request of {case.tokens} tokens, {size}" if case.images else "a text request"
    return size


def _print(rows: Sequence[Row], say: Callable[[str], None]) -> None:
    for row in rows:
        print(json.dumps(row), flush=True)
        if row["error"]:
            say(f"{row['way']}: {row['error']}")


def grouped(ways: Sequence[Way]) -> list[list[Way]]:
    """The ways of each pair; the memcpy, which needs no receiver, is in the first."""
    settings: dict[str, list[Way]] = {}
    for way in ways:
        if way.name != LIMIT:
            settings.setdefault(way.pair, []).append(way)
    first, *rest = settings.values() or [[]]
    return [[WAYS[LIMIT], *first], *rest]


@contextmanager
def started(ways: Sequence[Way], threads: int) -> Iterator[list[Pair]]:
    """A pair for each setting, all started; they end with the block, whatever interrupts it."""
    settings = grouped(ways)
    with ExitStack() as stack:
        try:
            pairs = [stack.enter_context(Pair(mine, threads)) for mine in settings]
            for pair in pairs:
                pair.wait()
            yield pairs
        finally:
            _interrupt.done = True  # the end is on its way: nothing leaves it half done


class _Interrupt:
    """KeyboardInterrupt for the first SIGINT or SIGTERM; they often come together."""

    done = False

    def __call__(self, number: int, frame: object) -> None:
        if not self.done:
            self.done = True
            raise KeyboardInterrupt


_interrupt = _Interrupt()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except MMLabError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
