"""What frontend and engine say to each other, and the reply that a caller gets.

Two channels. Over the transport go the kinds below, each with an envelope that carries the request
id; the id's upper bits name the frontend, so that a reply finds its way even where the body of the
request could not be read. Over control sockets go a few plain structs about the engine itself.
Every request that reached the engine is ended by exactly one REPLY, ERROR or ABORTED.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from mmlab.errors import WireError
from mmlab.fields import KwargsItems
from mmlab.pixels import Step
from mmlab.strategies import Strategy
from mmlab.wire import read_envelope

PROTOCOL = 1  # of all that frontends and engines say to each other; raised when that changes
ECHO = "echo"  # the name of no model: the engine answers with the checksum of what arrived
ARENA = "arena"  # the transport whose payload lies in memory of the frontend's
TORCH_SHM = "torch-shm"  # the one whose payload lies in memory of torch's, made for each request
COUNTER_BITS = 40  # of a request id; the 24 bits above name the frontend
OWNER = 1  # number of the frontend that owns the engine
LAST_NUMBER = (1 << 24) - 1  # of a frontend
STAGES = (
    "processor",
    "encode",
    "transport",
    "decode",
    "reduce",
    "h2d",
    "encoder",
    "prefill",
    "decode_tokens",
)  # of a request, in the order of the journey: the keys of `Reply.timings`


class Kind(enum.IntEnum):
    """Kinds of message over the transport. Numbers are never given a second meaning."""

    HELLO = 1  # both ways, no body: the links stand
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    ABORT = 5  # no body: the caller no longer wants the reply
    ABORTED = 6  # no body: the engine has dropped the request
    CACHE_MISS = 7  # reserved for the item cache
    RETURNED = 8  # of no request: leases of the frontend's arena that the engine gives back


def frontend_of(request_id: int) -> bytes:
    """The transport's name of the frontend that made this request id."""
    return b"f" + (request_id >> COUNTER_BITS).to_bytes(3, "big")


def number_of(frame0: memoryview) -> int | None:
    """The number of the frontend whose message begins with this frame; None: unreadable."""
    try:
        return read_envelope(frame0).request_id >> COUNTER_BITS
    except WireError:
        return None


class Request(msgspec.Struct):
    """One prompt and its items, as the engine reads it."""

    token_ids: list[int]
    max_new_tokens: int = 0
    mm: KwargsItems | None = None
    steps: dict[str, tuple[Step, ...]] | None = None  # by modality: what normalizes uint8 pixels


class EngineReply(msgspec.Struct):
    """What the engine knows about an answered request; `timings` in seconds."""

    token_ids: list[int]
    checksum: int
    received_ns: int
    timings: dict[str, float]
    device: str
    pinned: bool
    batch_requests: int  # how many requests were staged together, this one included
    rejected: int  # messages that this engine could not read, so far


class ErrorReply(msgspec.Struct):
    """Why one request failed; `error` is the name of the exception's class."""

    stage: str
    error: str
    message: str
    trace: str
    rejected: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request.

    `timings` has seconds for every stage of the journey (`STAGES`), for `queue` (received, but the
    engine was busy) and `checksum`, and `total` from submit to reply. Requests that were staged
    together share the times of that staging. `checksum` is xxh3_64 over what reached the device
    (see `pipeline.checksum`).
    """

    request_id: int
    token_ids: list[int]
    text: str
    checksum: int
    timings: dict[str, float]
    payload_nbytes: int
    wire_nbytes: int
    num_frames: int
    pinned: bool
    device: str
    batch_requests: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, tag="config"):
    """All an engine needs to start; the first thing on its control socket."""

    owner_pid: int
    model: str
    device: str
    seed: int
    serializer: str
    insecure_pickle: bool
    transport: str
    staging: str
    directory: str
    threads: int | None
    max_nbytes: int  # payload bytes in flight, of all requests together
    max_batch_items: int
    max_batch_nbytes: int
    tune_malloc: bool = True  # tell glibc to keep freed memory
    authkey: bytes = b""  # of torch-shm: what both sides know, and nobody else
    strategy: Strategy | None = None  # for frontends that attach; the engine needs only its parts


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine listens. `start_s`: seconds from its first line to here, by part."""

    pid: int
    device: str
    pinned: bool
    torch_threads: int
    malloc_tuned: bool
    requests_endpoint: str
    replies_endpoint: str
    start_s: dict[str, float]
    arena_nbytes: int = 0  # of the frontend's arena, which the engine has mapped read-only
    address: str = ""  # where other frontends can attach


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine could not start, or cannot go on, and ends."""

    error: str
    message: str
    trace: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """From the owner: end after the work in hand. To attached frontends: that is what happens."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """What the engine says to whoever connects to its address: all that a frontend has to match."""

    protocol: int = PROTOCOL
    config: EngineConfig
    ready: Ready


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """The answer of a frontend that attaches; the descriptor of its arena comes with it."""

    protocol: int = PROTOCOL
    max_nbytes: int  # payload bytes in flight, of all its requests together


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The frontend may send: `number` is the upper part of its request ids, for ever its own."""

    number: int
    arena_nbytes: int


Control = EngineConfig | Ready | Failed | Stop | Welcome | Join | Joined


def missing_items(items: KwargsItems) -> Sequence[str]:
    """Places of `None` entries, such as `image[2]`."""
    return [
        f"{modality}[{index}]"
        for modality, entries in items.items()
        for index, entry in enumerate(entries)
        if entry is None
    ]


def payload_nbytes(items: KwargsItems | None) -> int:
    """Bytes of payload; 0 where a tensor has none, which the serializer will refuse by name."""
    try:
        return 0 if items is None else items.nbytes
    except RuntimeError:
        return 0
