"""The ways from encode to the batch in the other process: a table, and a file for each kind.

A file has a sender and a receiver class. They are imported in the processes that need them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmlab.bench.transfer.packets import Case
from mmlab.errors import UsageError, unknown

LIMIT, PEER = "memcpy", "vllm"  # what every time is compared with, in the same round
REQUEST = "-request"  # the end of the names of ways for whole requests
PICKLE_NBYTES = 256 << 20  # of a message of `pickle`,
PICKLE_FULL_NBYTES = 1 << 30  # and where everything is wanted


@dataclass(frozen=True)
class Way:
    """One way. `pair`: the processes it runs in; `copies`: of each payload byte, both processes
    and kernel together (two a socket); `payloads`: an upper bound of the memory that it takes
    besides its sources, in both processes, for the question whether it fits; `s_per_gb`: seconds
    that a gigabyte takes on two cores of 2020 or so, for the question how long a run will be."""

    name: str
    module: str  # of mmlab.bench.transfer.ways
    pair: str
    copies: int
    payloads: int
    s_per_gb: float
    stands_for: str
    tuned: bool = False  # glibc keeps freed memory, in both processes
    keeps: bool = False  # what it takes stays taken between its messages
    peer: bool = False

    @property
    def request(self) -> bool:
        """True for whole requests, not for batches."""
        return self.name.endswith(REQUEST)

    def takes(self, case: Case) -> bool:
        """Whether it gets ready for that case."""
        return self.request == bool(case.tokens) and case.only in ("", self.name)


_ALL = (
    Way(LIMIT, "memcpy", "plain", 1, 1, 0.08, "the limit: one thread, warm memory", keeps=True),
    Way("pickle", "pickled", "plain", 7, 5, 7.0, "items pickled: each drags its batch along"),
    Way("pickle5", "pickle5", "plain", 5, 7, 2.0, "pickle protocol 5 in band, then stacked"),
    Way("msgpack-inline", "inline", "plain", 3, 4, 1.2, "mmlab's wire, payload in the message"),
    Way(
        name="msgpack",
        module="msgpack",
        pair="tuned",
        copies=2,
        payloads=3,
        s_per_gb=0.25,
        stands_for="mmlab's wire, payload in frames of its own; malloc tuned, as in an engine",
        tuned=True,
    ),
    Way("msgpack-untuned", "msgpack", "plain", 2, 3, 0.4, "the same, malloc as it is"),
    Way("segments", "segments", "plain", 2, 4, 1.0, "SGLang's way: a named segment a tensor"),
    Way("torch-shm", "torch_shm", "plain", 2, 4, 1.2, "torch.multiprocessing's shared memory"),
    Way("arena", "arena", "arena", 1, 2, 0.08, "one copy into shared memory, a view", keeps=True),
    Way("arena-in-place", "in_place", "arena", 0, 0, 0.01, "the producer's result is there"),
    Way(PEER, "vllm", "vllm", 3, 5, 1.2, "vLLM's encoder, decoder and stack", peer=True),
    Way("vllm-tuned", "vllm", "vllm-tuned", 3, 5, 0.4, "malloc tuned", tuned=True, peer=True),
    Way("vllm-inline", "vllm_inline", "vllm", 6, 7, 3.5, "vLLM's, all in the message", peer=True),
    Way("vllm-torch-shm", "vllm_torch_shm", "vllm", 2, 4, 1.3, "vLLM's torch_shm", peer=True),
    Way(
        name="vllm-store",
        module="vllm_store",
        pair="vllm",
        copies=3,
        payloads=6,
        s_per_gb=0.8,
        stands_for="vLLM's shared-memory object store, warm",
        keeps=True,
        peer=True,
    ),
    Way(
        name="vllm-arena",
        module="vllm_arena",
        pair="vllm",
        copies=1,
        payloads=8,
        s_per_gb=0.5,
        stands_for="vLLM's ShmTensorArena; by a socket below 8 MiB and above 256 MiB, as it does",
        keeps=True,
        peer=True,
    ),
    Way("msgpack-request", "request", "tuned", 2, 3, 0.4, "mmlab's in frames", tuned=True),
    Way(
        "arena-request", "request_arena", "arena", 1, 2, 0.1, "its payload in the arena", keeps=True
    ),
    Way("vllm-request", "vllm_request", "vllm", 3, 5, 1.2, "vLLM's EngineCoreRequest", peer=True),
)
WAYS: dict[str, Way] = {way.name: way for way in _ALL}
NAMES = tuple(name for name, way in WAYS.items() if not way.request)


def copies(way: Way, case: Case, nbytes: int) -> int:
    """Copies of each byte of a message of `nbytes`: pickle takes more for more images, vLLM's
    arena does not take all sizes."""
    if way.module == "pickled":
        return 6 * case.images + 1
    outside = way.module == "vllm_arena" and not 8 << 20 <= nbytes <= 256 << 20
    return 2 if outside else way.copies


def payloads(way: Way, case: Case) -> int:
    """Upper bound of the memory that it takes, in payloads."""
    return way.payloads * max(1, case.images) + 2 if way.module == "pickled" else way.payloads


def left_out(way: Way, case: Case, nbytes: int, full: bool) -> str | None:
    """Why that way is not measured with messages of `nbytes`; None: it is."""
    most = PICKLE_FULL_NBYTES if full else PICKLE_NBYTES
    if way.module != "pickled" or case.images * nbytes <= most:
        return None
    more = "" if full else ", above it only with --full"
    return (
        f"left out: {case.images} images drag {case.images} batches along, a message would have "
        f"{case.images * nbytes / 1e9:.2g} GB (limit {most / 1e9:.2g} GB{more})"
    )


def chosen(names: Sequence[str] | None, peer: bool) -> list[Way]:
    """The ways to measure, in the order of every table: the named ones (None: all) and the limit,
    the peer's only with a peer. UsageError for a name that is none, or needs a peer. With a way
    goes its form for whole requests, if it has one."""
    for name in names or ():
        if name not in NAMES:
            raise unknown("way", name, NAMES)
        if WAYS[name].peer and not peer:
            raise UsageError(f"way {name!r} is vLLM's own: it needs --peer vllm")
    wanted = {LIMIT, *(names or WAYS), *([PEER] if peer else [])}
    wanted |= {f"{name}{REQUEST}" for name in wanted}
    return [way for way in _ALL if way.name in wanted and (peer or not way.peer)]
