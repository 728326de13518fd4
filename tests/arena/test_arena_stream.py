"""Large copies past the caches: the same bytes at any address and length, and nothing beyond."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
import torch

from mmlab.arena import Arena, ArenaSink, stream
from mmlab.cli import checkup
from mmlab.wire import Encoder

pytest.importorskip("llvmlite", reason="an extra: mmlab[fast]")
GUARD = 256


def test_it_is_machine_code_here() -> None:
    assert stream.compiled() is not None
    assert stream.compiled() is stream.compiled()


@pytest.mark.parametrize("out_at", [0, 1, 63, 64, 127])
@pytest.mark.parametrize("source_at", [0, 1, 4, 100])
@pytest.mark.parametrize("more", [0, 1, 127, 128, 129, 4095])
def test_every_byte_arrives_and_none_beyond(out_at: int, source_at: int, more: int) -> None:
    nbytes = stream.LARGE + more
    generator = np.random.default_rng(out_at + source_at)
    source = generator.integers(0, 256, source_at + nbytes, np.uint8)[source_at:]
    whole = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    at = GUARD - whole.ctypes.data % 128 + out_at
    out = whole[at : at + nbytes]
    stream.copy(out, source)
    assert np.array_equal(out, source)
    assert (whole[:at] == 0xA5).all()
    assert (whole[at + nbytes :] == 0xA5).all()


def test_small_payload_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "compiled", lambda: pytest.fail("it was asked for"))
    out = np.zeros(stream.LARGE - 1, np.uint8)
    stream.copy(out, np.ones_like(out))
    assert out.all()


def test_without_llvmlite_numpy_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    stream.compiled.cache_clear()
    try:
        assert stream.compiled() is None
        out = np.zeros(stream.LARGE, np.uint8)
        stream.copy(out, np.ones_like(out))
        assert out.all()
        found = checkup._copies()
        assert found.status == "limited"
        assert "mmlab[fast]" in found.found
    finally:
        monkeypatch.undo()
        stream.compiled.cache_clear()


def test_the_sink_copies_large_payload_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, blocks = stream.compiled(), []
    assert loop is not None

    def counted(out: int, source: int, count: int) -> None:
        blocks.append(count)
        loop(out, source, count)

    monkeypatch.setattr(stream, "compiled", lambda: counted)
    with Arena.create(3 * stream.LARGE) as arena:
        sent = torch.arange(stream.LARGE // 2, dtype=torch.int32)
        sink = ArenaSink(arena)
        Encoder().encode(sent, sink=sink)
        assert blocks == [sent.nbytes // 128]
        assert sink.lease is not None
        assert np.array_equal(sink.lease.view()[: sent.nbytes], sent.numpy().view(np.uint8))


def test_the_interpreters_lock_is_not_held_meanwhile() -> None:
    loop = stream.compiled()
    assert isinstance(loop, ctypes._CFuncPtr)
    assert not loop._flags_ & 4  # ctypes' flag of functions that keep it
    assert ctypes.PYFUNCTYPE(None)._flags_ & 4


def test_a_processor_that_llvm_does_not_know_copies_with_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import llvmlite.binding as llvm

    def unknown(source: str) -> None:
        raise RuntimeError("no such target")

    monkeypatch.setattr(llvm, "parse_assembly", unknown)
    stream.compiled.cache_clear()
    try:
        assert stream.compiled() is None
    finally:
        stream.compiled.cache_clear()
