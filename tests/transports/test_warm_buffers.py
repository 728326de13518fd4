"""Memory for large messages: the same pages again, and never while somebody still looks at them."""

from __future__ import annotations

import gc
import resource
import threading

import numpy as np
import pytest

from mmlab.transports.warm import GRAIN, WASTE, WarmBuffers

MIB = 1 << 20


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_comes_back_with_its_last_view_and_is_used_again() -> None:
    buffers = WarmBuffers(64 * MIB)
    first = buffers.take(10 * MIB)
    at = address(first)
    view = first[3 * MIB :][: 2 * MIB].data
    del first
    second = buffers.take(10 * MIB)
    assert address(second) != at and buffers.free_nbytes() == 0
    view[0] = 7
    del view
    assert buffers.free_nbytes() == 10 * MIB
    assert address(buffers.take(10 * MIB)) == at


def test_a_second_message_touches_no_new_page() -> None:
    buffers = WarmBuffers(64 * MIB)
    buffers.take(32 * MIB)[:] = 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers.take(32 * MIB)[:] = 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100  # of 8192 pages


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (10 * MIB, 10 * MIB - 5, True),
        (10 * MIB, 10 * MIB // WASTE, True),
        (10 * MIB, 10 * MIB // WASTE - 1, False),
        (10 * MIB, 10 * MIB + 1, False),
        (GRAIN, 1, True),
        (1, GRAIN, True),
        (0, 1, True),
    ],
)
def test_a_buffer_serves_messages_of_about_its_size(first: int, second: int, same: bool) -> None:
    buffers = WarmBuffers(64 * MIB)
    kept = buffers.take(first)
    assert kept.nbytes == first
    del kept
    unused = buffers.free_nbytes()
    assert unused % GRAIN == 0 and unused >= first
    found = buffers.take(second)
    assert found.nbytes == second
    assert (buffers.free_nbytes() == 0) == same


def test_the_smallest_that_fits_is_taken() -> None:
    buffers = WarmBuffers(64 * MIB)
    sizes = [16 * MIB, 10 * MIB, 12 * MIB]
    taken = [buffers.take(size) for size in sizes]
    wanted = address(taken[1])
    del taken
    assert address(buffers.take(9 * MIB)) == wanted


def test_what_is_kept_is_bounded() -> None:
    buffers = WarmBuffers(20 * MIB)
    taken = [buffers.take(8 * MIB) for _ in range(5)]
    taken.clear()
    assert buffers.free_nbytes() == 16 * MIB


def test_views_may_end_in_any_thread_while_others_take() -> None:
    buffers = WarmBuffers(64 * MIB)

    def work(number: int) -> None:
        for _ in range(200):
            mine = buffers.take(2 * MIB)
            mine[::4096] = number
            views = [mine[i:].data for i in range(3)]
            del mine
            assert views[0][0] == number and views[0][4096 * 100] == number

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert 0 < buffers.free_nbytes() <= 16 * MIB  # at most two for each thread
