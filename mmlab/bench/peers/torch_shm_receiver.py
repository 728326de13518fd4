"""The engine's side of `torch_shm`: handles are unpickled, and the memory that they name is mapped.

Unpickling runs whatever code a message names. The memory is writable here, as in vLLM.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path

import torch

from mmlab.bench.peers.torch_shm import ANSWER_S, SOCKET, connection_over, storage_of
from mmlab.errors import WireError
from mmlab.transports.base import Buffer, Message, RequestReceiver


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Buffer, fetch: Callable[[int], int]) -> None:
        super().__init__(io.BytesIO(data))
        self._fetch = fetch
        self._storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, pid: tuple[int, int]) -> torch.UntypedStorage:
        number, nbytes = pid
        if number not in self._storages:
            fd = self._fetch(number)
            try:
                if (size := os.fstat(fd).st_size) != nbytes:
                    raise WireError(f"shared storage {number:#x} has {size} B, not {nbytes}")
                self._storages[number] = storage_of(fd, nbytes)
            finally:
                os.close(fd)  # torch keeps one of its own
        return self._storages[number]


class SharedReceiver:
    """The engine's side: a `RequestReceiver` that maps what a message's handles name, and puts it
    where they stood. What cannot be had is the message's `error`."""

    def __init__(self, receiver: RequestReceiver, directory: Path, authkey: bytes) -> None:
        self._receiver = receiver
        self._address = str(directory / SOCKET)
        self._authkey = authkey

    @property
    def endpoint(self) -> str:
        return self._receiver.endpoint

    def receive(self, timeout: float | None = None) -> Message | None:
        message = self._receiver.receive(timeout)
        if message is not None and len(message.frames) > 1:
            self._open(message)
        return message

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self._receiver.watch(fd, act)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    def close(self) -> None:
        self._receiver.close()

    def _open(self, message: Message) -> None:
        head, *rest = message.frames
        message.frames = [head]
        try:
            if len(rest) > 1:
                raise WireError(f"{len(rest) + 1} frames, wanted frame 0 and handles")
            tensors = _Unpickler(rest[0], self._fetch).load()
            message.frames += [tensor.numpy().data for tensor in tensors]
        except Exception as error:  # without its traceback, which would hold the message
            message.error = WireError(f"torch-shm: {type(error).__name__}: {error}")
        message.nbytes = sum(frame.nbytes for frame in message.frames)

    def _fetch(self, number: int) -> int:
        """The descriptor of that storage, the caller's to close."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(ANSWER_S)
            sock.connect(self._address)
            sock.settimeout(None)
        except OSError:
            sock.close()
            raise
        with connection_over(sock) as connection:
            answer_challenge(connection, self._authkey)
            deliver_challenge(connection, self._authkey)
            connection.send_bytes(number.to_bytes(8))
            if not connection.recv_bytes(1):
                raise WireError(f"the frontend has no storage {number:#x} any more")
            return reduction.recv_handle(connection)
