"""The budget of bytes and the table of futures: bounded, fair, and every future ended once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import pytest
from pipeline_parts import wait_for

from mmlab import BackpressureTimeout, EngineError, UsageError
from mmlab.pipeline.inflight import ByteBudget, InFlight, Pending, ReplyFuture
from mmlab.pipeline.messages import Reply


def reply(request_id: int = 1) -> Reply:
    return Reply(
        request_id=request_id,
        token_ids=[],
        text="",
        checksum=0,
        timings={},
        payload_nbytes=0,
        wire_nbytes=0,
        num_frames=0,
        pinned=False,
        device="cpu",
        batch_requests=1,
    )


def test_what_fits_is_taken_and_what_is_given_back_fits_again() -> None:
    budget = ByteBudget(100)
    budget.acquire(60, 0)
    budget.acquire(40, 0)
    with pytest.raises(BackpressureTimeout, match=r"1 payload bytes: 100 of 100 bytes"):
        budget.acquire(1, 0)
    budget.release(60)
    budget.acquire(60, 0)
    assert budget.taken == 100 and budget.count == 2


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_what_can_never_fit_is_refused_at_once_with_both_numbers(timeout: float | None) -> None:
    with pytest.raises(UsageError, match=r"101 payload bytes.*budget is 100 bytes.*max_inflight"):
        ByteBudget(100).acquire(101, timeout)


def test_the_whole_budget_fits() -> None:
    ByteBudget(100).acquire(100, 0)


def test_a_timeout_is_kept_and_the_place_in_line_is_left() -> None:
    budget = ByteBudget(100)
    budget.acquire(100, 0)
    begun = time.monotonic()
    with pytest.raises(BackpressureTimeout, match=r"within 0\.1 s"):
        budget.acquire(1, 0.1)
    assert 0.09 < time.monotonic() - begun < 2
    budget.release(100)
    budget.acquire(100, 0)
    assert budget.waiting == 0


def test_a_large_request_is_not_overtaken_by_small_ones() -> None:
    budget = ByteBudget(100)
    budget.acquire(90, 0)
    order: list[int] = []

    def take(nbytes: int) -> None:
        budget.acquire(nbytes, 10)
        order.append(nbytes)
        budget.release(nbytes)

    with ThreadPoolExecutor(3) as pool:
        waiting = []
        for place, nbytes in enumerate((100, 10, 5), 1):
            waiting.append(pool.submit(take, nbytes))
            assert wait_for(lambda place=place: budget.waiting == place)
        with pytest.raises(BackpressureTimeout):
            budget.acquire(1, 0)  # would fit, but others were there before
        assert order == []
        budget.release(90)
        wait(waiting, 5)
    assert order[0] == 100


def test_cancelled_bytes_make_room_but_only_one_budget_of_them() -> None:
    budget = ByteBudget(100)
    budget.acquire(100, 0)
    budget.abandon(100)
    budget.acquire(100, 0)
    budget.abandon(100)
    with pytest.raises(BackpressureTimeout):
        budget.acquire(1, 0)  # 200 bytes may still lie in a socket
    budget.release(100, abandoned=True)
    budget.acquire(100, 0)


def test_closing_ends_every_wait() -> None:
    budget = ByteBudget(100)
    budget.acquire(100, 0)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(budget.acquire, 50, None) for _ in range(2)]
        assert wait_for(lambda: budget.waiting == 2)
        budget.close(lambda: EngineError("gone", -9))
        for one in waiting:
            with pytest.raises(EngineError, match="gone"):
                one.result(2)
    with pytest.raises(EngineError, match="gone"):
        budget.acquire(0, 0)


def table(nbytes: int = 10) -> tuple[InFlight, list[int], ReplyFuture]:
    """A table with one request under way, and the ids that were aborted."""
    inflight = InFlight(ByteBudget(100))
    aborted: list[int] = []

    def abort(request_id: int) -> bool:
        aborted.append(request_id)
        return inflight.cancel(request_id)

    future = ReplyFuture(1, abort, None)
    inflight.budget.acquire(nbytes, 0)
    inflight.add(1, Pending(future, nbytes, 0))
    return inflight, aborted, future


def test_a_reply_ends_its_future_and_returns_its_bytes() -> None:
    inflight, _, future = table()
    pending = inflight.take(1)
    assert pending is not None
    pending.settle(reply())
    assert future.result(0) == reply()
    assert inflight.budget.taken == 0 and len(inflight) == 0
    assert inflight.take(1) is None
    assert not future.cancel()


def test_cancelling_returns_bytes_at_once_and_tells_the_engine_once() -> None:
    inflight, aborted, future = table()
    assert future.cancel() and future.cancel()
    assert aborted == [1, 1] and future.cancelled()
    assert inflight.budget.taken == 0 and inflight.budget.abandoned == 10
    assert wait([future], timeout=0).done == {future}  # those who wait are told too
    with pytest.raises(CancelledError):
        future.result(0)
    pending = inflight.take(1)  # the engine's confirmation, or a reply that came too late
    assert pending is not None
    pending.settle(reply())
    assert future.cancelled() and inflight.budget.abandoned == 0


def test_a_future_is_ended_once_when_cancel_and_reply_race() -> None:
    for _ in range(300):
        inflight, _, future = table()
        barrier = threading.Barrier(3)

        def cancel(future: ReplyFuture = future, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            future.cancel()

        def answer(inflight: InFlight = inflight, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            pending = inflight.take(1)
            assert pending is not None
            pending.settle(reply())

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(cancel), pool.submit(answer)]
            barrier.wait()
            for one in running:
                one.result(5)
        assert wait([future], timeout=1).done == {future}
        assert inflight.budget.taken == inflight.budget.abandoned == inflight.budget.count == 0


def test_death_fails_what_is_under_way_and_what_comes_later() -> None:
    inflight, _, future = table()
    assert inflight.fail_all(lambda: EngineError("killed", -9)) == 1
    error = future.exception(0)
    assert isinstance(error, EngineError) and error.exit_code == -9
    assert inflight.budget.taken == 0
    with pytest.raises(EngineError, match="killed"):
        inflight.add(2, Pending(ReplyFuture(2, inflight.cancel, None), 10, 0))
    assert inflight.fail_all(lambda: EngineError("again")) == 0
