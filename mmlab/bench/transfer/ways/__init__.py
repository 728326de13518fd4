"""The ways from encode to the batch in the other process: a table, and a file for each kind.

A file has a sender and a receiver class. They are imported in the processes that need them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmlab.errors import UsageError, unknown

LIMIT, PEER = "memcpy", "vllm"  # what every time is compared with, in the same round


@dataclass(frozen=True)
class Way:
    """One way. `pair`: the processes it runs in; `copies`: of each payload byte, both processes
    and kernel together (two a socket); `payloads`: an upper bound of the memory that it takes
    besides its sources, in both processes, for the question whether it fits."""

    name: str
    module: str  # of mmlab.bench.transfer.ways
    pair: str
    copies: int
    payloads: int
    stands_for: str
    tuned: bool = False  # glibc keeps freed memory, in both processes
    keeps: bool = False  # what it takes stays taken between its messages
    peer: bool = False


_ALL = (
    Way(
        LIMIT, "memcpy", "plain", 1, 1, "the limit: a copy into warm memory, one thread", keeps=True
    ),
    Way("pickle5", "pickle5", "plain", 5, 7, "pickle protocol 5 in band, stacked at the receiver"),
    Way("msgpack-inline", "inline", "plain", 3, 4, "mmlab's wire, payload inside the message"),
    Way("msgpack", "msgpack", "plain", 2, 3, "mmlab's wire, payload in frames of its own"),
    Way("msgpack-tuned", "msgpack", "tuned", 2, 3, "the same, malloc tuned", tuned=True),
    Way(
        "arena", "arena", "arena", 1, 2, "one copy into shared memory, a view as batch", keeps=True
    ),
    Way("arena-in-place", "in_place", "arena", 0, 0, "the producer's result is there already"),
    Way(PEER, "vllm", "vllm", 3, 5, "vLLM's encoder, decoder and stack", peer=True),
    Way("vllm-tuned", "vllm", "vllm-tuned", 3, 5, "the same, malloc tuned", tuned=True, peer=True),
    Way(
        name="vllm-arena",
        module="vllm_arena",
        pair="vllm",
        copies=1,
        payloads=8,
        stands_for="vLLM's ShmTensorArena; by a socket below 8 MiB and above 256 MiB, as it does",
        keeps=True,
        peer=True,
    ),
)
WAYS: dict[str, Way] = {way.name: way for way in _ALL}


def copies(way: Way, nbytes: int) -> int:
    """Copies of each byte of a message of `nbytes`: vLLM's arena takes not all sizes."""
    outside = way.module == "vllm_arena" and not 8 << 20 <= nbytes <= 256 << 20
    return 2 if outside else way.copies


def chosen(names: Sequence[str] | None, peer: bool) -> list[Way]:
    """The ways to measure, in the order of every table: the named ones (None: all) and the limit,
    the peer's only with a peer. UsageError for a name that is none, or needs a peer."""
    for name in names or ():
        if name not in WAYS:
            raise unknown("way", name, WAYS)
        if WAYS[name].peer and not peer:
            raise UsageError(f"way {name!r} is vLLM's own: it needs --peer vllm")
    wanted = {LIMIT, *(names or WAYS), *([PEER] if peer else [])}
    return [way for way in _ALL if way.name in wanted and (peer or not way.peer)]
