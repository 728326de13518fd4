"""How requests leave a frontend: as a serializer's frames, or with their payload in shared memory.

One class for each kind of way; a link knows only what they have in common.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from mmlab.arena import Arena, Lease, Returned
from mmlab.pipeline.messages import ARENA, TORCH_SHM, EngineConfig, Request
from mmlab.pipeline.serializers import Serializer, make_serializer
from mmlab.transports import Buffer

LITTLE: Final = 64 << 10  # payload bytes; below, a request goes as one plain frame


class Outgoing(ABC):
    """Makes the frames of requests, and owns what their payload lies in until they have ended."""

    authkey = b""  # the engine shows it when it asks for memory

    @property
    def arena(self) -> Arena | None:
        """What the engine maps, where there is one."""
        return None

    @abstractmethod
    def dumps(
        self, request: Request, request_id: int, nbytes: int, timeout: float | None
    ) -> tuple[list[Buffer], Lease | None]:
        """Frames of a request of `nbytes` payload bytes, and the lease of its place, if it has one.

        EncodeError for what cannot be carried. Waits up to `timeout` seconds for what a way has
        only so much of: BackpressureTimeout.
        """

    def lending(self, lease: Lease | None) -> contextlib.AbstractContextManager[None]:
        """Within it the message is sent."""
        return contextlib.nullcontext()

    def take_back(self, returned: Sequence[Returned]) -> None:  # noqa: B027 (not all ways lend)
        """What the engine has no view of any more."""

    def release(self, request_id: int) -> None:  # noqa: B027 (not all ways keep anything)
        """The request has ended, in whatever way. Idempotent."""

    def stats(self) -> dict[str, float]:
        """Counters of its own."""
        return {}

    def close(self) -> None:  # noqa: B027 (as above)
        """End all waits, make nothing more. Idempotent."""


class Framed(Outgoing):
    """All of a request is in its frames."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def dumps(
        self, request: Request, request_id: int, nbytes: int, timeout: float | None
    ) -> tuple[list[Buffer], Lease | None]:
        return self._serializer.dumps(request, request_id), None


def make_outgoing(config: EngineConfig, *, private: bool) -> Outgoing:
    """The way that `config` names. TransportError where what it needs does not fit."""
    from mmlab.pipeline.lending import Lender  # it is a subclass

    if config.transport == ARENA:
        return Lender(config.max_nbytes)
    if config.transport == TORCH_SHM:
        from mmlab.bench.peers.torch_shm import Sharer

        return Sharer(config.directory)
    return Framed(
        make_serializer(
            config.serializer,
            insecure_pickle=config.insecure_pickle,
            private=private,
            max_nbytes=config.max_nbytes,
        )
    )
