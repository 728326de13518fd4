"""torch warns once a process that a read-only buffer became a tensor; received frames are that.

The warning is let off here, once and unseen, because nothing in mmlab writes into a received frame.
"""

from __future__ import annotations

import warnings

import torch


def quiet_frombuffer() -> None:
    """Use up torch's one warning about read-only buffers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
