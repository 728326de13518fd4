"""The fuzzer itself, for a minute; and that it draws what it says, notices crashes, and replays.

MMLAB_FUZZ_SECONDS sets how long the first test runs. `make fuzz` runs a million messages.
"""

from __future__ import annotations

import mmap
import os
import random
from argparse import Namespace
from pathlib import Path

import fuzz_child
import fuzz_run
import pytest
import torch
from fuzz_check import Checker, Often
from fuzz_child import Child, Found
from fuzz_messages import TYPES, draw_bases
from fuzz_parts import Parts, load, save
from fuzz_resident import Resident
from fuzz_structure import change_structure, close_tree, open_tree
from fuzz_worker import EPOCH, Source

import mmlab

SECONDS = float(os.environ.get("MMLAB_FUZZ_SECONDS", "60"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_mutated_messages_are_valid_or_refused_in_bounded_time_and_memory(
    seed: int, tmp_path: Path
) -> None:
    args = Namespace(count=0, seconds=SECONDS, seed=seed, processes=1, out=tmp_path)
    total, found, seconds = fuzz_run.run(args)
    print(fuzz_run.summary(seed, total, found, seconds))
    assert not found, "\n".join(map(str, found))
    n = total.numbers
    assert n["messages"] > 50 * SECONDS
    assert 0.1 < n["valid"] / n["decodes"] < 0.6
    if SECONDS >= 10:
        assert set(total.checks) == {"read", "again", "resident", "traced"}
        places = {reason.split(":")[0] for reason in total.errors}
        assert {"envelope", "table", "msgpack", "reference", "value", "items"} <= places


def test_what_the_mutations_begin_from_is_valid(seed: int) -> None:
    torch.set_num_threads(1)
    with Checker(Often(1, 1, 20, 20)) as checker:
        for n, base in enumerate(draw_bases(seed, 300)):
            frames = base.parts.assemble()
            assert Parts.of(frames) == base.parts
            assert checker.check(frames, base.type, n)
        assert not checker.counts.errors
        assert checker.counts.tensors > 500 and checker.counts.items > 200


def test_a_message_is_known_by_seed_and_number(seed: int) -> None:
    one, two, other = Source(seed), Source(seed), Source(seed + 1)
    numbers = [0, 1, EPOCH, 5, EPOCH - 1, 1_000_000]
    for k in numbers:
        one.message(k)
    same = [tuple(map(bytes, two.message(k)[1])) for k in reversed(numbers)]
    assert same == [tuple(map(bytes, one.message(k)[1])) for k in reversed(numbers)]
    assert same != [tuple(map(bytes, other.message(k)[1])) for k in reversed(numbers)]


def test_the_structure_of_a_body_is_read_and_written_without_loss(seed: int) -> None:
    rng = random.Random(seed)
    changed = 0
    for base in draw_bases(seed, 100):
        body = base.parts.body
        again = Parts(close_tree(open_tree(body)), *_rest(base.parts))
        assert mmlab.Decoder(TYPES[base.type]).decode(again.assemble()) is not object
        changed += change_structure(rng, body) != body
    assert changed > 80


def _rest(parts: Parts) -> tuple[bytes, bytes, tuple[bytes, ...], int, int]:
    return parts.table, parts.inline, parts.frames, parts.kind, parts.request_id


def test_a_saved_message_is_read_back(tmp_path: Path) -> None:
    frames = [b"head", b"", bytes(300)]
    save(tmp_path / "sub" / "a.msg", frames)
    assert load(tmp_path / "sub" / "a.msg") == frames


def test_peak_memory_is_seen_though_it_was_given_back() -> None:
    with Resident() as resident:
        if not resident.works:
            pytest.skip("this kernel does not let /proc/self/clear_refs be written")
        before = resident.reset()
        mmap.mmap(-1, 32 << 20).write(bytes(32 << 20))  # whatever malloc keeps
        assert resident.peak() - before > 30 << 20
        resident.reset()
        assert resident.peak() - before < 16 << 20


BROKEN = """
import os, signal, struct, sys, time
at = sys.argv.index("--position") + 1
first = int(sys.argv[sys.argv.index("--first") + 1])
with open(sys.argv[at], "r+b") as file:
    file.write(struct.pack("<Q", first))
if first == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
if first == 2:
    sys.exit("the last words")
if first == 3:
    time.sleep(60)
counts = '{"messages": 7, "errors": {"a": 1}, "checks": {}}'
print('{"finding": "broken", "text": "t", "trace": "", "k": 9}', flush=True)
print('{"counts": %s, "done": true}' % counts, flush=True)
"""


def test_crashes_and_hangs_are_findings_and_the_next_message_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(BROKEN, encoding="utf-8")
    monkeypatch.setattr(fuzz_child, "WORKER", worker)
    monkeypatch.setattr(fuzz_child, "STALL", 1.0)
    found: list[Found] = []
    with Child(tmp_path / "child", 5, 1, 1, 9, 60.0) as child:
        while not child.done:
            found += child.look()
        counts = child.all_counts()
    assert [(f.k, f.kind, f.text) for f in found] == [
        (1, "crash", "SIGSEGV"),
        (2, "crash", "exit code 1"),
        (3, "hang", "no next message within 1 s"),
        (9, "broken", "t"),
    ]
    assert "the last words" in found[1].trace
    assert counts[-1] == {"messages": 7, "errors": {"a": 1}, "checks": {}}
    found[0].save(tmp_path / "out")
    assert len(load(tmp_path / "out" / "5-1.msg")) >= 1
