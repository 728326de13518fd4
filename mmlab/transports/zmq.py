"""ZeroMQ transports: requests by PUSH -> PULL, replies by ROUTER -> DEALER, one context each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import zmq

from mmlab.errors import TransportError
from mmlab.transports.limits import (
    TRANSPORT_DESCRIPTORS,
    naming_the_limit,
    require_descriptors,
)
from mmlab.transports.links import Dealer, Link, Pull, Push, Router, ZmqContext

L = TypeVar("L", bound=Link)


class ZmqTransport:
    """Links of one scheme in one context of their own."""

    _numbers = itertools.count(1)  # inproc names; only unique within a context, but readable

    def __init__(self, scheme: str, host: str = "127.0.0.1", *, name: str | None = None) -> None:
        self.name = scheme if name is None else name
        self.private = scheme != "tcp"
        self._scheme = scheme
        self._host = host
        require_descriptors(TRANSPORT_DESCRIPTORS, f"a transport ({self.name})")
        self._context: ZmqContext = zmq.Context()
        self._links: list[Link] = []

    def _address(self, directory: Path | None, role: str) -> str:
        if self._scheme == "tcp":
            return f"tcp://{self._host}:*"
        if self._scheme == "inproc":
            return f"inproc://{role}-{next(self._numbers)}"
        if directory is None:
            raise TransportError("ipc needs a directory for its sockets, got None")
        return f"ipc://{directory / role}"

    def bind_requests(
        self, directory: Path | None, max_nbytes: int = -1, max_queued: int = 1000
    ) -> Pull:
        pull = self._open(lambda: Pull(self._context, max_nbytes, max_queued))
        pull.bind(self._address(directory, "req"))
        return pull

    def bind_replies(self, directory: Path | None) -> Router:
        router = self._open(lambda: Router(self._context))
        router.bind(self._address(directory, "rep"))
        return router

    def connect_requests(self, endpoint: str) -> Push:
        push = self._open(lambda: Push(self._context))
        push.connect(endpoint)
        return push

    def connect_replies(self, endpoint: str, frontend: bytes) -> Dealer:
        dealer = self._open(lambda: Dealer(self._context, frontend))
        dealer.connect(endpoint)
        return dealer

    def _open(self, make: Callable[[], L]) -> L:
        with naming_the_limit(f"opening a link ({self.name})"):
            link = make()
        self._links.append(link)  # before it binds or connects: what fails there is closed too
        return link

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()
        self._context.destroy(linger=0)  # never waits for a socket that was not closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def inproc() -> ZmqTransport:
    """Between threads; both ends must come from this one transport."""
    return ZmqTransport("inproc")


def ipc() -> ZmqTransport:
    """Between processes, by sockets in a directory whose permissions decide who may connect."""
    return ZmqTransport("ipc")


def tcp(host: str = "127.0.0.1") -> ZmqTransport:
    """Between processes of this machine; any of its users can connect."""
    return ZmqTransport("tcp", host)
