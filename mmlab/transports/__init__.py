"""Transports between processes, behind one protocol and one registry."""

from __future__ import annotations

from collections.abc import Callable

from mmlab.errors import unknown
from mmlab.transports.arena import arena
from mmlab.transports.base import Buffer, Message, Sent, Transport
from mmlab.transports.torch_shm import torch_shm
from mmlab.transports.zmq import inproc, ipc, tcp

REGISTRY: dict[str, Callable[[], Transport]] = {
    "inproc": inproc,
    "ipc": ipc,
    "tcp": tcp,
    "arena": arena,
    "torch-shm": torch_shm,
}
INSECURE = frozenset({"torch-shm"})  # the engine unpickles what comes this way


def open_transport(name: str) -> Transport:
    """A new transport of that name, with resources of its own; close it. UsageError if unknown."""
    try:
        factory = REGISTRY[name]
    except (KeyError, TypeError):
        raise unknown("transport", name, REGISTRY) from None
    return factory()


__all__ = ["INSECURE", "REGISTRY", "Buffer", "Message", "Sent", "Transport", "open_transport"]
