"""Transport by torch's shared memory: the peer that stands for vLLM's `torch_shm`.

Its links are those of ipc. What fills them, and what opens a message, lives with the peers
(`mmlab.bench.peers.torch_shm`), because it unpickles handles.
"""

from __future__ import annotations

from mmlab.arena.memfd import check_platform
from mmlab.transports.zmq import ZmqTransport


def torch_shm() -> ZmqTransport:
    """Between processes; the payload in memory of torch's, new for every request. TransportError:
    no memfd."""
    check_platform()
    return ZmqTransport("ipc", name="torch-shm")
