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


def test_another_payload_has_other_bytes_and_its_tokens_are_counted_not_hidden() -> None:
    rows = [
        result_row(request=request, strategy=strategy, payload=payload, checksum=len(payload))
        | ({"token_ids": "[1, 9]"} if payload == "bfloat16" and request == 1 else {})
        for request in (0, 1, 2)
        for strategy, payload in (
            *(("msgpack", "float32"), ("arena", "float32")),
            *(("arena-uint8", "uint8"), ("half", "bfloat16"), ("other half", "bfloat16")),
        )
    ]
    assert checks.verify(rows) == 3
    assert checks.other_tokens(rows) == {"uint8": (0, 3), "bfloat16": (1, 3)}
    assert checks.other_tokens([row for row in rows if row["payload"] != "float32"]) == {}
    wrong = result_row(payload="uint8", checksum=6, strategy="else")
    with pytest.raises(DeliveryError, match=r"different bytes for arena-uint8.* and else"):
        checks.verify([*rows, wrong])


def test_rows_from_before_there_was_a_choice_were_float32() -> None:
    old = {name: value for name, value in result_row().items() if name != "payload"}
    assert checks.verify([old, result_row()]) == 1
    assert checks.other_tokens([old, result_row(payload="uint8")]) == {"uint8": (0, 1)}


def test_another_repeat_has_other_images_and_may_differ() -> None:
    assert checks.verify([result_row(), result_row(repeat=1, checksum=1)]) == 2
