"""What a run of `mmlab bench transfer` consists of: ways, pairs, sizes, and about how long."""

from __future__ import annotations

import pytest

from mmlab.bench.transfer.__main__ import grouped
from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.plan import cases, duration_text, estimate_s
from mmlab.bench.transfer.ways import WAYS, chosen, copies, left_out
from mmlab.errors import UsageError


def test_ways_come_in_one_order_and_the_limit_is_always_among_them() -> None:
    def names(ways: list[str], peer: bool) -> list[str]:
        return [way.name for way in chosen(ways, peer)]

    assert names(["torch-shm", "pickle5"], False) == ["memcpy", "pickle5", "torch-shm"]
    ours = ["memcpy", "arena", "vllm", "arena-request", "vllm-request"]
    assert names(["arena"], True) == ours  # a way has its form for whole requests with it
    assert [way.name for way in chosen(None, True)] == list(WAYS)
    with pytest.raises(UsageError, match="needs --peer"):
        chosen(["vllm-tuned"], False)
    with pytest.raises(UsageError, match="unknown way 'arena-request'"):
        chosen(["arena-request"], False)


def test_copies_are_declared_for_each_size() -> None:
    sizes = (1 << 20, 8 << 20, 256 << 20, 257 << 20)
    case = Case(8, "uint8", 64, 3)
    assert [copies(WAYS["vllm-arena"], case, nbytes) for nbytes in sizes] == [2, 1, 1, 2]
    assert [copies(WAYS["arena"], case, nbytes) for nbytes in sizes] == [1, 1, 1, 1]
    assert copies(WAYS["pickle"], case, 1) == 49


def test_pickle_is_left_out_where_its_message_would_be_too_large() -> None:
    case = Case(8, "float32", 896, 3)
    reason = left_out(WAYS["pickle"], case, nbytes_of(case), False)
    assert reason is not None and "8 images drag 8 batches along" in reason
    assert "0.62 GB (limit 0.27 GB, above it only with --full)" in reason
    assert left_out(WAYS["pickle"], case, nbytes_of(case), True) is None
    most = Case(16, "float32", 896, 3)
    assert "limit 1.1 GB)" in str(left_out(WAYS["pickle"], most, nbytes_of(most), True))
    assert left_out(WAYS["pickle5"], most, nbytes_of(most), False) is None


def test_malloc_is_tuned_in_pairs_of_their_own() -> None:
    pairs = grouped(chosen(None, True))
    assert sorted(way.name for pair in pairs for way in pair) == sorted(WAYS)
    for pair in pairs:
        assert len({way.tuned for way in pair if way.name != "memcpy"}) == 1
    assert [[way.name for way in pair] for pair in grouped(chosen(["memcpy"], False))] == [
        ["memcpy"]
    ]


def test_there_is_more_payload_in_rotation_than_a_cache_holds() -> None:
    for case in cases([1, 8, 32], ["float32", "uint8"], 896):
        payload = case.images * 3 * 896 * 896 * (4 if case.dtype == "float32" else 1)
        assert 3 <= case.sources <= 16
        assert case.sources * payload >= 256 << 20 or case.sources == 16


def test_the_estimate_grows_with_what_is_asked_for() -> None:
    plan = cases([1, 8], ["float32"], 896)
    few, many = chosen(["arena"], False), chosen(None, False)
    base = estimate_s(plan, [], few, 5.0, False)
    assert 10 <= base < estimate_s(plan, [8], few, 5.0, False)
    assert estimate_s(plan, [], many, 5.0, False) < estimate_s(plan, [], many, 5.0, True)
    assert duration_text(30.2) == "30 s" and duration_text(330) == "6 min"
