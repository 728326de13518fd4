"""The peer of the arena: tensors through torch.multiprocessing's shared memory, as vLLM does it.

In vLLM (`TensorIpcSender`) each tensor's storage is moved into shared memory by `share_memory_()`,
which copies it there once, and torch's reductions pickle a handle; the engine maps what the handle
names. Here it is the same with three differences, none of which makes the peer slower:

- The caller's own tensors stay where they are. The payload of a request is copied, once, into one
  fresh storage, so that a request costs one descriptor and a small view of a huge storage costs its
  own bytes only; `share_memory_()` on a view would move all of its storage under the caller's feet.
- The memory is a memfd that torch is given. torch's own has a name in /dev/shm for as long as it
  takes to reserve it (0.1 s for 300 MB): a process that is killed within that time leaks it.
- The sharer is this pipeline's own, not the one that multiprocessing keeps for a whole process:
  that one has its socket in a directory that a SIGKILL leaves, and a descriptor that is never
  fetched (an abort, a dead engine) stays with it for ever.

Strategy `file_descriptor`, then: a handle is a number, for which the engine gets the descriptor
over an AF_UNIX socket in the pipeline's private directory, after both sides have shown that they
know the key which the engine was given over its control socket. Unpickling a handle runs whatever
code a message names, so this is reached only with `insecure_pickle=True`. This is the frontend's
side; the engine's is `torch_shm_receiver`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.multiprocessing  # registers its reductions with multiprocessing's pickler

from mmlab.arena import Lease
from mmlab.errors import BackpressureTimeout, TransportError
from mmlab.pipeline.messages import Kind, Request
from mmlab.pipeline.outgoing import LITTLE, Outgoing
from mmlab.pipeline.serializers import SIZE_THRESHOLD
from mmlab.transports.base import Buffer
from mmlab.transports.limits import naming_the_limit
from mmlab.wire import Encoder
from mmlab.wire.envelope import ALIGN

MAX_SHARED: Final = 128  # requests with memory under way, so descriptors here and at the engine
ANSWER_S: Final = 5  # seconds; a process that is stopped holds up one request, not all
JOIN_S: Final = 5.0
RETRY_S: Final = 0.05  # after an error, which may be one that comes at once again
SOCKET: Final = "shm"  # its name in the private directory
_SECONDS = struct.pack("ll", ANSWER_S, 0)

log = logging.getLogger("mmlab.pipeline")


def connection_over(sock: socket.socket) -> Connection:
    """multiprocessing's connection over a socket, with bounded waits."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SECONDS)
    return Connection(sock.detach())


def storage_of(fd: int, nbytes: int) -> torch.UntypedStorage:
    """torch's shared storage over the memory behind `fd`, of which it keeps a duplicate."""
    make: Callable[[int, int], torch.UntypedStorage]
    make = torch.UntypedStorage._new_shared_fd_cpu  # type: ignore[attr-defined]
    return make(fd, nbytes)


class _Pickler(reduction.ForkingPickler):
    """torch's reductions, but a storage is (number, bytes): what the engine asks for."""

    def __init__(self, out: io.BytesIO, number: int) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._number = number

    def persistent_id(self, value: object) -> tuple[int, int] | None:
        return (self._number, value.nbytes()) if isinstance(value, torch.UntypedStorage) else None


class Sharer(Outgoing):
    """The frontend's side. It has a request's memory until the engine has fetched it, or the
    request has ended (`release`), and a thread that answers the engine."""

    def __init__(self, directory: Path | str) -> None:
        self.authkey = secrets.token_bytes(32)
        self._plain = Encoder(size_threshold=None)
        self._encoder = Encoder(size_threshold=SIZE_THRESHOLD)
        self._changed = threading.Condition()
        self._under_way: set[int] = set()  # requests that have no answer yet
        self._waiting: dict[int, torch.UntypedStorage] = {}  # not fetched yet
        self._closed = False
        self._visitor: socket.socket | None = None  # who is being answered, or was the last
        with naming_the_limit("sharing torch's memory"), contextlib.ExitStack() as undo:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self._socket.close)
            self._socket.bind(str(Path(directory) / SOCKET))
            self._socket.listen()
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self._wake)
            self._thread = threading.Thread(target=self._run, name="mmlab-shm", daemon=True)
            self._thread.start()
            undo.pop_all()

    def dumps(
        self, request: Request, request_id: int, nbytes: int, timeout: float | None
    ) -> tuple[list[Buffer], Lease | None]:
        """Frame 0, and behind it the pickled handles of the payload's `nbytes` bytes.

        EncodeError for what cannot be carried; waits up to `timeout` seconds while MAX_SHARED
        requests are under way: BackpressureTimeout.
        """
        if nbytes < LITTLE:
            return self._plain.encode(request, Kind.REQUEST, request_id), None
        head, *payload = self._encoder.encode(request, Kind.REQUEST, request_id)
        return [head, *([self._share(payload, request_id, timeout)] if payload else [])], None

    def _share(self, payload: Sequence[Buffer], request_id: int, timeout: float | None) -> bytes:
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._closed or len(self._under_way) < MAX_SHARED, timeout
            )
            if self._closed:
                raise TransportError("torch-shm: it is closed, nothing more is shared")
            if not free:
                raise BackpressureTimeout(
                    f"torch-shm: {MAX_SHARED} requests have memory under way, each with a file "
                    "descriptor, and none was answered in time; wait for replies"
                )
            self._under_way.add(request_id)
        tensors = _copied(payload)
        out = io.BytesIO()
        _Pickler(out, request_id).dump(tensors)
        with self._changed:
            if request_id in self._under_way:  # not closed meanwhile
                self._waiting[request_id] = tensors[0].untyped_storage()
        return out.getvalue()

    def release(self, request_id: int) -> None:
        """The request has ended, in whatever way. Idempotent."""
        with self._changed:
            self._under_way.discard(request_id)
            self._waiting.pop(request_id, None)
            self._changed.notify()

    def stats(self) -> dict[str, float]:
        """Requests with memory under way, and those whose memory is held here."""
        return {"shm_requests": len(self._under_way), "shm_waiting": len(self._waiting)}

    def close(self) -> None:
        """End all waits, share and hold nothing more. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._under_way.clear()
            self._waiting.clear()
            self._changed.notify_all()
        os.eventfd_write(self._wake, 1)
        if (visitor := self._visitor) is not None:
            with contextlib.suppress(OSError):  # one that says nothing is not waited for
                visitor.shutdown(socket.SHUT_RDWR)
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        with self._socket:
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            poller.register(self._wake, select.POLLIN)
            while self._wake not in dict(poller.poll()):
                try:
                    self._answer()
                except Exception as error:  # whoever it was, the next one is answered
                    log.warning("torch-shm: a storage was not handed over: %r", error)
                    time.sleep(RETRY_S)
        os.close(self._wake)

    def _answer(self) -> None:
        sock, _ = self._socket.accept()
        with sock.dup() as self._visitor, connection_over(sock) as connection:
            deliver_challenge(connection, self.authkey)
            answer_challenge(connection, self.authkey)
            number = int.from_bytes(connection.recv_bytes(8))
            with self._changed:
                storage = self._waiting.pop(number, None)
            connection.send_bytes(b"" if storage is None else b"y")
            if storage is not None:
                reduction.send_handle(connection, storage._share_fd_cpu_()[0], None)


def _copied(payload: Sequence[Buffer]) -> list[torch.Tensor]:
    """Each buffer's bytes as a uint8 tensor; all are views of one new storage in shared memory."""
    offsets, total = [], 0
    for buffer in payload:
        offsets.append(total)
        total += -(-memoryview(buffer).nbytes // ALIGN) * ALIGN
    with naming_the_limit("sharing torch's memory"):
        fd = os.memfd_create("mmlab-torch-shm", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, total)  # as torch does; faster than page by page
        storage = storage_of(fd, total)
    except (OSError, RuntimeError) as error:
        raise TransportError(f"torch-shm: no shared storage of {total} B ({error})") from error
    finally:
        os.close(fd)
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    tensors = []
    for buffer, offset in zip(payload, offsets, strict=True):
        source = np.frombuffer(buffer, np.uint8)
        tensors.append(whole[offset : offset + source.nbytes])
        np.copyto(tensors[-1].numpy(), source)
    return tensors
