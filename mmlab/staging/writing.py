"""The one CPU copy: the elems of a key into their places in staging memory.

Measured on two cores of an EPYC, 32 images of 4.8 MB, everything warm, medians of 11 to 15
interleaved rounds. One thread: one memcpy 17.4 ms, `torch.stack(out=)` 17.4 to 18.0, stores
past the caches 9.3 to 10.0, and with a first reading of the result 16.5 to 17.5 against 24.9. Two
threads: `torch.stack` 12.7 ms at best, but it joins its threads once for every elem, and when they
have to share a core each join can take 8 ms: 17 to 390 ms on a shared machine, 17 to 47 with
OMP_WAIT_POLICY=PASSIVE. Huge pages under the pool made no difference.

So large batches are copied by the calling thread alone, elem by elem and past the caches (without
llvmlite by NumPy, in the time of a memcpy). With more threads than were measured, torch copies.
"""

from __future__ import annotations

import torch

from mmlab.arena import stream
from mmlab.dtypes import as_bytes
from mmlab.reducers import Batch

PART_NBYTES = 256 << 10  # smaller elems, on average: the interpreter's turn for each would be felt
MOST_THREADS = 2  # of torch; from more on its copies were not measured


def write_key(batch: Batch, key: str, out: torch.Tensor) -> None:
    """Write the batch of `key` into `out` (dense, of the plan's shape and dtype)."""
    if out.nbytes < stream.LARGE or not _write_parts(batch, key, out):
        batch.reduce_key(key, out)


def write_twice(batch: Batch, key: str, out: torch.Tensor) -> None:
    """Put the batch of `key` together in fresh ordinary memory, then copy that: two copies."""
    whole = batch.reduce_key(key)
    assert isinstance(whole, torch.Tensor)
    as_bytes(out).copy_(as_bytes(whole))


def _write_parts(batch: Batch, key: str, out: torch.Tensor) -> bool:
    """Copy part by part; False, and nothing done, where that is not possible or not faster."""
    make_parts = batch.reduction(key).parts
    if make_parts is None or torch.get_num_threads() > MOST_THREADS:
        return False
    parts = make_parts()
    if out.nbytes < PART_NBYTES * len(parts):
        return False
    # `out` in the parts' dtype: some are seen as integers
    memory = out if parts[0][1].dtype == out.dtype else out.view(parts[0][1].dtype)
    pairs = [(memory[place], part) for place, part in parts]
    if not all(_plain(target) and _plain(part) for target, part in pairs):
        return False
    for target, part in pairs:
        stream.copy(as_bytes(target).numpy(), as_bytes(part).numpy(), large=PART_NBYTES)
    return True


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes, in the order they lie, are its values in theirs."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
