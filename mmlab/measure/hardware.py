"""What the record of a run does not need but a diagnosis does: NUMA nodes, and the GPU's link.

The link is asked through NVML (package nvidia-ml-py, extra `gpu`), which makes no CUDA context. An
idle GPU may show a lower generation than it uses under load, so that both are given.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s, one direction


@dataclass(frozen=True)
class Link:
    """A GPU's PCIe link, as it is now and at most."""

    generation: int
    width: int
    max_generation: int
    max_width: int

    @property
    def max_gb_per_s(self) -> float | None:
        """Raw rate of one direction at its best, in GB/s (1e9); None for a generation to come."""
        lane = _GB_PER_LANE.get(self.max_generation)
        return None if lane is None else lane * self.max_width


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> int | None:
    """NUMA nodes of the machine; None where the system does not tell."""
    found = len(list(root.glob("node[0-9]*"))) if root.is_dir() else 0
    return found or None


def gpu_link(index: int = 0) -> Link | str:
    """The link of one GPU, or in words why it is not known."""
    if importlib.util.find_spec("pynvml") is None:
        return "not known without nvidia-ml-py: pip install 'mmlab[gpu]'"
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"not known: NVML says {error}"
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        return Link(
            nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
            nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
            nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
            nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
        )
    except nvml.NVMLError as error:
        return f"not known: NVML says {error}"
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
