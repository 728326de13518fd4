"""A fast wrong answer is a failed run."""

from __future__ import annotations

import pytest
from bench_rows import result_row

from mmlab.bench import checks
from mmlab.bench.checks import DeliveryError


def test_rows_that_agree_are_counted_by_request() -> None:
    rows = [
        result_row(strategy=strategy, phase=phase, request=request, checksum=request)
        for strategy in ("pickle", "msgpack")
        for phase in ("sequential", "mix")
        for request in (0, 1)
    ]
    assert checks.verify(rows) == 2
    assert checks.verify([]) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checksum": 1}, "different bytes for msgpack/sequential"),
        ({"token_ids": "[1, 3]"}, r"different greedy tokens .*\(token_ids \[1, 2\]\)"),
        ({"phase": "mix", "token_ids": "[]"}, r"and pickle/mix \(\[\]\)"),
    ],
)
def test_another_strategy_or_phase_that_disagrees_is_named(
    changes: dict[str, object], words: str
) -> None:
    rows = [result_row(), result_row(request=1), result_row(strategy="pickle", **changes)]
    with pytest.raises(DeliveryError, match=f"repeat 0, request 0 .*{words}"):
        checks.verify(rows)


def test_another_repeat_has_other_images_and_may_differ() -> None:
    assert checks.verify([result_row(), result_row(repeat=1, checksum=1)]) == 2
