"""Mutated messages in child processes, watched: `make fuzz`.

    make fuzz ARGS="--count 1000000 --processes 2"     how many messages, in how many processes
    make fuzz ARGS="--seconds 600 --count 0"           until the time is over
    make fuzz ARGS="--seed 7 --only 123456"            one message again: what it is, what it does
    make fuzz ARGS="--replay runs/fuzz/7-123456.msg"   a message that was saved

Exit code 1 if anything was found; the messages are saved under runs/fuzz.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzz_child import Child, Found

FOLDER = Path("runs/fuzz")
EVERY = 10.0  # seconds between progress lines
RESTARTS = 50  # after so many crashes it is no use to go on


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    found.add_argument("--count", type=int, default=1_000_000, help="messages; 0: no limit")
    found.add_argument("--seconds", type=float, default=0, help="wall clock; 0: no limit")
    found.add_argument("--seed", type=int, help="the default is drawn, and printed")
    found.add_argument("--processes", type=int, default=1)
    found.add_argument("--out", type=Path, default=FOLDER, help="where findings are saved")
    found.add_argument("--only", type=int, metavar="K", help="message number K of the seed")
    found.add_argument("--replay", type=Path, metavar="FILE", help="a message that was saved")
    return found


class Total:
    """The children's counts together."""

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()

    def add(self, counts: dict[str, object]) -> None:
        for name, value in counts.items():
            if isinstance(value, dict):
                getattr(self, name).update(value)
            elif isinstance(value, int):
                self.numbers[name] += value


def total_of(children: list[Child]) -> Total:
    total = Total()
    for child in children:
        for counts in child.all_counts():
            total.add(counts)
    return total


def run(args: argparse.Namespace) -> tuple[Total, list[Found], float]:
    """Start the children, restart what crashes, until count or seconds are over."""
    end = args.count or 1 << 40
    seconds = args.seconds or 1e9
    began, last = time.monotonic(), 0.0
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(Path(folder) / str(i), args.seed, i, args.processes, end, seconds)
            )
            for i in range(args.processes)
        ]
        while any(not child.done for child in children):
            time.sleep(0.05)
            for child in children:
                for finding in child.look():
                    finding.save(args.out)
                    found.append(finding)
                    print(f"FOUND {finding}", flush=True)
            took = time.monotonic() - began
            if sum(child.restarts for child in children) > RESTARTS:
                print(f"more than {RESTARTS} crashes: given up", flush=True)
                break
            if took - last > EVERY:
                last = took
                numbers = total_of(children).numbers
                print(
                    f"{took:6.0f} s  {numbers['messages']:>9,} messages"
                    f"  {numbers['messages'] / took:6,.0f}/s  {len(found)} findings",
                    flush=True,
                )
        return total_of(children), found, time.monotonic() - began


def summary(seed: int, total: Total, found: list[Found], seconds: float) -> str:
    n = total.numbers
    lines = [
        f"seed {seed}: {n['messages']:,} messages in {seconds:.0f} s"
        f" ({n['messages'] / seconds:,.0f}/s), {n['decodes']:,} decodes",
        f"  {n['valid']:,} valid ({n['tensors']:,} tensors, {n['items']:,} items,"
        f" {n['batches']:,} batches looked at), {total.errors.total():,} WireError:",
        *(f"    {count:>9,}  {reason}" for reason, count in total.errors.most_common()),
        "  checks: " + ", ".join(f"{name} {count:,}" for name, count in total.checks.items()),
        f"  findings: {len(found)}",
        *(f"    {finding}" for finding in found),
    ]
    return "\n".join(lines)


def main() -> int:
    args = parser().parse_args()
    if args.only is not None or args.replay is not None:
        from fuzz_replay import one_again

        return one_again(args.seed, args.only, args.replay)
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {args.seed}", flush=True)
    total, found, seconds = run(args)
    print(summary(args.seed, total, found, seconds), flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
