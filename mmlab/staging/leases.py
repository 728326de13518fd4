"""How a piece of pool memory finds its way back, exactly once and from anywhere.

A lease ends by `Buffer.release`, or by the death of the last view of its tensor; whichever comes
first counts. The second may happen at any allocation, in any thread, even one that holds the pool's
lock: so returned blocks go through a deque, and nothing here takes a lock.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from mmlab.staging.device import Completion
from mmlab.staging.memory import Buffer

POLL_S = 1e-3  # events and finalizers wake nobody: whoever waits for them looks again this often
LEAK_S = 5.0  # after this long without an answer, memory that a copy may read is leaked, not freed

_LEAKED: list[Block] = []


@dataclass(eq=False, slots=True)
class Block:
    """Memory of the pool. The pool's accounts are in `nbytes`, whatever becomes of `memory`."""

    nbytes: int
    memory: torch.Tensor
    pinned: bool
    last_use: int = 0


@dataclass(slots=True)
class Returns:
    """The way back. It outlives the pool: leases hold it, not the pool."""

    queue: deque[tuple[Block, Completion | None]] = field(default_factory=deque)
    closed: bool = False

    def put(self, block: Block, after: Completion | None) -> None:
        if self.closed:  # nobody will come and look: free it now
            outlive_copies([(block, after)])
            block.memory, after = torch.empty(0, dtype=torch.uint8), None
        self.queue.append((block, after))


def lease(block: Block, nbytes: int, returns: Returns) -> Buffer:
    """Hand `block` out: a buffer whose tensor has a storage of its own over the block's memory."""
    view = block.memory.numpy()  # a new object, held by the storage: its end is the lease's end
    lost = weakref.finalize(view, returns.put, block, None)
    lost.atexit = False
    end = partial(_end, lost.detach, returns, block)
    return Buffer(torch.from_numpy(view), nbytes, block.pinned, end)


def _end(
    detach: Callable[[], object], returns: Returns, block: Block, after: Completion | None
) -> bool:
    if detach() is None:  # it answers once, to one caller
        return False
    returns.put(block, after)
    return True


def outlive_copies(returned: Sequence[tuple[Block, Completion | None]]) -> None:
    """Keep memory mapped until the copies that read it have passed, though its pool is gone."""
    unfinished = [(block, after) for block, after in returned if after is not None]
    deadline = time.monotonic() + LEAK_S
    while unfinished and time.monotonic() < deadline:
        unfinished = [entry for entry in unfinished if not entry[1].query()]
        if unfinished:
            time.sleep(POLL_S)
    _LEAKED.extend(block for block, _ in unfinished)


def abandon(pending: Sequence[tuple[Block, Completion]], returns: Returns) -> None:
    """The pool died without close()."""
    returns.closed = True
    outlive_copies([*pending, *returns.queue])
    returns.queue.clear()
