"""An installed vLLM's `ShmTensorArena` with the pickled stubs of its message queue, on a CPU.

In vLLM it is the way from its engine to its workers. A tensor goes into one of eight slots of
256 MiB; one that is larger, or finds no free slot, goes in a frame of its own, by vLLM's own rule.
Unpickling runs whatever code a message names: only over sockets in a private directory.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import zmq

from mmlab.wire import Buffer

Handle = tuple[int, int, int, str]  # readers, bytes of a slot, slots, name of the shared memory
_IN_BAND = 1 << 20  # smaller buffers stay in the pickle, as in vLLM's queue


class _Arena:
    def __init__(self) -> None:
        package = "vllm.distributed.device_communicators"
        self.queue = importlib.import_module(f"{package}.shm_broadcast")
        self.module = importlib.import_module(f"{package}.shm_tensor_arena")
        self.arena: Any = None  # vLLM's own, which has no types

    def touch(self, nbytes: int, *, write: bool) -> None:
        """Have the first `nbytes` of every slot there, as after some hours of service."""
        if nbytes > self.arena.slot_bytes:
            return  # no slot will be used
        for slot in range(self.arena.n_slots):
            memory = np.frombuffer(self.arena._slot(slot, nbytes), np.uint8)
            if write:
                memory[::4096] = 1
            else:
                memory[::4096].sum()

    def close(self) -> None:
        """The shared memory goes with its last user."""
        self.arena = None


class ArenaWriter(_Arena):
    """The engine's side."""

    def create(self) -> Handle:
        self.arena = self.module.ShmTensorArena(1)
        return cast(Handle, self.arena.handle())

    def dumps(self, value: object) -> list[Buffer]:
        """What vLLM's queue puts on a socket."""
        frames: list[Buffer] = [b""]

        def outside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _IN_BAND:
                return True
            frames.append(raw)
            return False

        with io.BytesIO() as out:
            pickler = self.module._ArenaPickler(out, self.arena, buffer_callback=outside)
            pickler.dispatch_table = {
                **copyreg.dispatch_table,
                torch.Tensor: self.queue._reduce_tensor,
            }
            pickler.dump(value)
            frames[0] = out.getvalue()
        return frames


class ArenaAttached(_Arena):
    """A worker's side."""

    def attach(self, handle: Handle) -> None:
        self.arena = self.module.ShmTensorArena(*handle, reader_rank=0)
        self.module._TENSOR_ARENAS[handle[3]] = self.arena

    def loads(self, frames: Sequence[memoryview]) -> object:
        """The value, and slots that are not used any more are free again, as vLLM's queue does."""
        self.arena.flush_releases()
        head, *rest = frames
        outside = [view.obj if isinstance(view.obj, zmq.Frame) else view for view in rest]
        return pickle.loads(head, buffers=outside)
