"""The parts of a soak: drawn by seed, counted twice, and every broken claim is found and named."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import msgspec
import pytest
import torch

from mmlab import Arena
from mmlab.bench.soak.claims import broken
from mmlab.bench.soak.draw import OPENING, REFUSED, draw
from mmlab.bench.soak.items import Maker
from mmlab.bench.soak.readings import Held, Reading
from mmlab.bench.soak.tally import MOST_FAULTS, Counts, Tally
from mmlab.bench.soak.ticket import Aborter, Ticket
from mmlab.cli import main
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import Reply


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return met


GOOD = Counts(
    submitted=12,
    accepted=9,
    refused=1,
    timed_out=2,
    answered=6,
    cancelled=3,
    cancels_granted=3,
)
HELD = Held(100_000_000, {"socket": 3, "pipe": 1}, {"python": 4})


def reading(name: str, frontend: Held = HELD, engine: Held = HELD, **stats: float) -> Reading:
    return Reading(name, 1.0, frontend, engine, {"requests_inflight": 0, **stats})


def answer(checksum: int) -> Reply:
    return Reply(
        request_id=1,
        token_ids=[],
        text="",
        checksum=checksum,
        timings={},
        payload_nbytes=7,
        wire_nbytes=7,
        num_frames=1,
        pinned=False,
        device="cpu",
        batch_requests=1,
    )


def ticket(tally: Tally, wanted: int = 5) -> tuple[Ticket, Future[Reply]]:
    future: Future[Reply] = Future()
    return Ticket(draw(0, 1, 2), future, wanted, tally, lambda: None), future


def test_a_request_is_the_same_in_every_run_and_no_other_seed_has_it() -> None:
    asks = [draw(7, thread, n) for thread in range(2) for n in range(50)]
    assert asks == [draw(7, thread, n) for thread in range(2) for n in range(50)]
    assert len({(ask.kind, ask.nbytes, ask.pause_s) for ask in asks}) > 60
    assert asks != [draw(8, thread, n) for thread in range(2) for n in range(50)]


def test_everything_is_drawn_and_every_item_can_be_made_again() -> None:
    """All kinds, dtypes, modalities, fields, memories, and the sizes at the arena's limits."""
    asks = [ask for n in range(OPENING, 900) if (ask := draw(3, 0, n)).kind != "large"]
    assert {ask.kind for ask in asks} >= {"text", "tiny", "edge", "thumbnails", "photographs"}
    assert {ask.kind for ask in asks} >= REFUSED
    assert {ask.abort for ask in asks} == {"", "at once", "soon", "after"}
    assert {4095, 4096, 4097, 65535, 65536, 65537} <= {a.nbytes for a in asks if a.kind == "edge"}
    seen: set[object] = set()
    small = [ask for ask in asks if ask.kind in ("tiny", "edge", "thumbnails", "text")]
    with Arena(64 << 20) as arena:
        makers = [Maker(3, 1 << 20, arena), Maker(3, 1 << 20)]
        for ask in small[:300]:
            here, again = (maker.items(ask) for maker in makers)
            assert checksum_items(here) == checksum_items(again)
            for modality, entries in here.items() if here is not None else ():
                for key, elem in (pair for e in entries if e for pair in e.items()):
                    seen |= {modality, key, type(elem.field).__name__, elem.field.keep_on_cpu}
                    seen.add(type(elem.data).__name__)
                    if isinstance(elem.data, torch.Tensor):
                        seen |= {elem.data.dtype, ("dense", elem.data.is_contiguous())}
                        seen.add(("in place", arena.where(elem.data) is not None))
    assert seen >= {"image", "video", "audio", True, False, "ndarray", "Tensor"}
    assert seen >= {"BatchedField", "FlatField", "SharedField"}
    assert seen >= {torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64}
    assert seen >= {("dense", True), ("dense", False), ("in place", True), ("in place", False)}


def test_an_answer_counts_once_and_a_wrong_one_is_a_fault_that_can_be_sent_again() -> None:
    said: list[str] = []
    tally = Tally(said.append)
    for checksum in (5, 6):
        ticket(tally)[1].set_result(answer(checksum))
    _, failed = ticket(tally)
    failed.set_exception(ValueError("no"))
    assert tally.counts().answered == 1 and tally.counts().payload_nbytes == 7
    assert tally.num_faults == 2 and tally.faults == said
    assert "request 1/2 of seed 0" in said[0] and "checksum 0x6, sent was 0x5" in said[0]
    assert "ValueError: no" in said[1]


def test_a_second_end_is_a_fault() -> None:
    tally = Tally(lambda text: None)
    twice, future = ticket(tally)
    future.set_result(answer(5))
    twice._judge(future)
    assert tally.counts().answered == 1 and "ended 2 times" in tally.faults[0]


def test_cancels_are_counted_by_what_they_said() -> None:
    tally = Tally(lambda text: None)
    with Aborter() as aborter:
        early, late = ticket(tally), ticket(tally)
        late[1].set_result(answer(5))
        for each, _ in (early, late):
            aborter.add(each, 0.0)
        with pytest.raises(CancelledError):
            early[1].result(5)
        assert wait_for(lambda: tally.counts().cancels_late == 1) and aborter.idle()
    counts = tally.counts()
    assert counts.cancelled == counts.cancels_granted == counts.answered == 1


def test_faults_are_bounded_and_counted() -> None:
    tally = Tally(lambda text: None)
    for n in range(MOST_FAULTS + 5):
        tally.fault(str(n))
    assert len(tally.faults) == MOST_FAULTS and tally.num_faults == MOST_FAULTS + 5


def test_nothing_is_broken_where_all_is_well() -> None:
    grown = msgspec.structs.replace(HELD, pss=101_900_000)
    assert broken(GOOD, [reading("first"), reading("last", grown, grown)], 0) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"submitted": 13}, "submitted 13, but accepted 9 + refused 1 + timed out 2"),
        ({"answered": 5}, "accepted 9, but answered 5 + cancelled 3"),
        ({"answered": 7}, "accepted 9, but answered 7 + cancelled 3"),
        ({"cancels_granted": 4}, "cancelled 3, but cancel() was granted 4 times"),
    ],
)
def test_sums_that_do_not_match_are_named(changes: dict[str, int], said: str) -> None:
    counts = msgspec.structs.replace(GOOD, **changes)
    assert broken(counts, [reading("first"), reading("last")], 0) == [said]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (reading("last", msgspec.structs.replace(HELD, pss=106_000_000)), r"\+3.0%, at most 2%"),
        (reading("last", msgspec.structs.replace(HELD, pss=90_000_000)), r"-5.0%, at most 2%"),
        (reading("last", msgspec.structs.replace(HELD, pss=None)), "could not be read"),
        (
            reading("last", msgspec.structs.replace(HELD, descriptors={"socket": 4, "pipe": 1})),
            "descriptors of the frontend changed: socket 3 -> 4",
        ),
        (
            reading("last", HELD, msgspec.structs.replace(HELD, threads={"python": 5})),
            "threads of the engine changed: python 4 -> 5",
        ),
        (reading("last", arena_live_nbytes=64), "last: arena_live_nbytes is 64, wanted 0"),
        (reading("last", arena_leases=1), "arena_leases is 1"),
        (reading("last", nbytes_abandoned=1), "nbytes_abandoned is 1"),
        (reading("last", arena_stale_returns=1), "arena_stale_returns is 1"),
        (reading("last", unexpected_replies=2), "unexpected_replies is 2"),
    ],
)
def test_what_is_left_over_is_named(last: Reading, said: str) -> None:
    (sentence,) = broken(GOOD, [reading("first"), last], 0)
    assert re.search(said, sentence)


def test_faults_and_a_missing_reading_are_broken_claims() -> None:
    assert broken(GOOD, [reading("first")], 3) == [
        "3 faults with requests",
        "1 quiet readings, wanted 2",
    ]


@pytest.mark.parametrize("seed", ["-1", str(1 << 63)])
def test_a_seed_that_is_none_is_refused_before_anything_is_started(
    seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "soak", "--seed", seed]) == 2
    assert "--seed" in capsys.readouterr().err
