"""Serializers of requests, by name. Replies and control messages are always msgpack.

One protocol and one table: another serializer is one more line. The one that unpickles lives with
the peers and is imported only when it was asked for by name and allowed by `insecure_pickle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mmlab.errors import UsageError, WireError, unknown
from mmlab.pipeline.messages import Kind, Request
from mmlab.transports import Buffer
from mmlab.wire import Decoder, Encoder

SIZE_THRESHOLD = 256  # bytes; smaller tensors stay in the header


class Serializer(Protocol):
    """Requests to frames and back. Thread-safe."""

    def dumps(self, request: Request, request_id: int) -> list[Buffer]:
        """EncodeError for what cannot be carried."""

    def loads(self, frames: Sequence[Buffer]) -> Request:
        """WireError for what is no request."""


class Msgpack:
    """mmlab's wire: payload in frames of its own, or (threshold None) inside the message."""

    def __init__(self, size_threshold: int | None, max_nbytes: int) -> None:
        self._encoder = Encoder(size_threshold=size_threshold)
        self._decoder = Decoder(Request, max_nbytes=max_nbytes)

    def dumps(self, request: Request, request_id: int) -> list[Buffer]:
        return self._encoder.encode(request, kind=Kind.REQUEST, request_id=request_id)

    def loads(self, frames: Sequence[Buffer]) -> Request:
        request = self._decoder.decode(frames)
        assert isinstance(request, Request)
        return request


class Pickle:
    """The header as msgpack, the items as one pickle behind it."""

    def __init__(self, max_nbytes: int) -> None:
        from mmlab.bench.peers import pickle

        self._peer = pickle
        self._header = Msgpack(None, max_nbytes)

    def dumps(self, request: Request, request_id: int) -> list[Buffer]:
        header = Request(request.token_ids, request.max_new_tokens, steps=request.steps)
        frames = self._header.dumps(header, request_id)
        if request.mm is not None:
            frames.append(self._peer.dumps_items(request.mm))
        return frames

    def loads(self, frames: Sequence[Buffer]) -> Request:
        if not 1 <= len(frames) <= 2:
            raise WireError(f"pickled request: got {len(frames)} frames, wanted 1 or 2")
        request = self._header.loads(frames[:1])
        if len(frames) == 2:
            request.mm = self._peer.loads_items(frames[1])
        return request


_TABLE: dict[str, Callable[[int], Serializer]] = {
    "msgpack": lambda max_nbytes: Msgpack(SIZE_THRESHOLD, max_nbytes),
    "msgpack-inline": lambda max_nbytes: Msgpack(None, max_nbytes),
    "pickle": Pickle,
}
INSECURE = frozenset({"pickle"})


def check_serializer(name: str, *, insecure_pickle: bool, private: bool) -> None:
    """UsageError for an unknown name, or one that unpickles where that is not allowed."""
    if name not in _TABLE:
        raise unknown("serializer", name, _TABLE)
    if name in INSECURE and not insecure_pickle:
        raise UsageError(
            f"serializer {name!r} runs code that arrives in a message: it starts only with "
            "insecure_pickle=True"
        )
    if name in INSECURE and not private:
        raise UsageError(f"serializer {name!r} is allowed over ipc in a private directory only")


def make_serializer(
    name: str, *, insecure_pickle: bool, private: bool, max_nbytes: int
) -> Serializer:
    """A serializer whose messages may hold `max_nbytes` of payload; see `check_serializer`."""
    check_serializer(name, insecure_pickle=insecure_pickle, private=private)
    return _TABLE[name](max_nbytes)
