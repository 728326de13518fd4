"""The arena: shared memory that is written once, read in place, and leaves nothing behind."""

from mmlab.arena.arena import Arena
from mmlab.arena.consumer import ArenaReader
from mmlab.arena.descriptor import Descriptor, Returned, pack, unpack
from mmlab.arena.leases import Lease
from mmlab.arena.passing import ArenaHandle, receive_descriptor, send_descriptor
from mmlab.arena.room import ArenaStats
from mmlab.arena.sink import ArenaSink

__all__ = [
    "Arena",
    "ArenaHandle",
    "ArenaReader",
    "ArenaSink",
    "ArenaStats",
    "Descriptor",
    "Lease",
    "Returned",
    "pack",
    "receive_descriptor",
    "send_descriptor",
    "unpack",
]
