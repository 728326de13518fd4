"""The named strategies: which combination of parts an experiment compares, in one fixed order.

A strategy is data only. The pipeline looks up its serializer, transport and staging mode by name,
so a new strategy is one more line in the table as long as its parts exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mmlab.errors import unknown

# What the processor's pixel values are sent as; uint8 is rescaled and normalized by the engine.
Payload: TypeAlias = Literal["float32", "bfloat16", "uint8"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way from the processor's output to the batch on the device.

    `copies` says how often the CPU moves each payload byte on that way, user space and kernel (two
    a socket) together: "2 to 3" is 2 where a request is a batch of its own and 3 where several
    requests are stacked into one batch. (pickle: storage, pickle, socket, unpickled bytes, storage,
    stack; what a driver does with pageable memory is not counted.) In the arena the processor's
    last step writes where the engine reads, so that nothing moves a byte; items that were made
    elsewhere (`submit_items`) are copied there. `needs_gpu`: pointless without
    one, so refused there. `insecure`: unpickles what arrives; needs `insecure_pickle=True`.
    `by_default`: `mmlab run` takes it without being asked for it by name.
    """

    name: str
    payload: Payload
    serializer: str
    transport: str
    reduce: Literal["eager", "deferred"]
    staging: str
    stands_for: str
    copies: str
    needs_gpu: bool = False
    insecure: bool = False
    by_default: bool = True


_IN_PLACE = "0 to 1; 1 to 2 for items made elsewhere"

_ALL = (
    Strategy(
        name="pickle",
        payload="float32",
        serializer="pickle",
        transport="ipc",
        reduce="deferred",
        staging="pageable",
        stands_for="vLLM before #16432: pickled items, each view dragging its whole storage",
        copies="7, of the whole batch for every item",
        insecure=True,
    ),
    Strategy(
        name="msgpack-inline",
        payload="float32",
        serializer="msgpack-inline",
        transport="ipc",
        reduce="deferred",
        staging="pageable",
        stands_for="#16432 with zero-copy disabled: payload inside the message",
        copies="3 to 4",
    ),
    Strategy(
        name="msgpack",
        payload="float32",
        serializer="msgpack",
        transport="ipc",
        reduce="deferred",
        staging="pageable",
        stands_for="#16432 with zero-copy enabled: out-of-band frames, deferred reduce",
        copies="2 to 3",
    ),
    Strategy(
        name="msgpack-pinned",
        payload="float32",
        serializer="msgpack",
        transport="ipc",
        reduce="deferred",
        staging="pinned",
        stands_for="+ #19169: stack into pinned memory",
        copies="3",
        needs_gpu=True,
    ),
    Strategy(
        name="msgpack-pool",
        payload="float32",
        serializer="msgpack",
        transport="ipc",
        reduce="deferred",
        staging="pool",
        stands_for="+ bounded pool of pinned memory, copies on a stream of their own",
        copies="3",
        needs_gpu=True,
    ),
    Strategy(
        name="torch-shm",
        payload="float32",
        serializer="msgpack",
        transport="torch-shm",
        reduce="deferred",
        staging="pageable",
        stands_for="vLLM's torch_shm: torch.multiprocessing's shared memory, new for each request",
        copies="1 to 2",
        insecure=True,
        by_default=False,
    ),
    Strategy(
        name="arena",
        payload="float32",
        serializer="msgpack",
        transport="arena",
        reduce="deferred",
        staging="pageable",
        stands_for="the processor writes into shared memory, the engine reads it there",
        copies=_IN_PLACE,
    ),
    Strategy(
        name="arena-direct",
        payload="float32",
        serializer="msgpack",
        transport="arena",
        reduce="deferred",
        staging="direct",
        stands_for="+ copies to the device straight from the registered arena",
        copies="0; 1 for items made elsewhere",
        needs_gpu=True,
    ),
    Strategy(
        name="arena-uint8",
        payload="uint8",
        serializer="msgpack",
        transport="arena",
        reduce="deferred",
        staging="pageable",
        stands_for="+ uint8 payload, a quarter of the bytes, normalized on the device",
        copies=_IN_PLACE,
        by_default=False,
    ),
)

REGISTRY: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}


def strategies() -> dict[str, Strategy]:
    """Name -> Strategy, in the order of every table and plot."""
    return dict(REGISTRY)


def resolve(name: str | Strategy, payload: Payload | None = None) -> Strategy:
    """The strategy of that name; a Strategy is taken as it is. UsageError for an unknown name.

    With `payload` the same way with another payload.
    """
    if isinstance(name, Strategy):
        found = name
    else:
        try:
            found = REGISTRY[name]
        except (KeyError, TypeError):
            raise unknown("strategy", name, REGISTRY) from None
    return found if payload is None else replace(found, payload=payload)
