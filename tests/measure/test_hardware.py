"""NUMA nodes and the GPU's link, on machines that have them or not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mmlab.cli import checkup
from mmlab.measure import bandwidth, environment, hardware
from mmlab.measure.bandwidth import Bandwidth
from mmlab.measure.hardware import Link


def test_numa_nodes_are_counted(tmp_path: Path) -> None:
    assert hardware.numa_nodes(tmp_path / "absent") is None
    for name in ("node0", "node1", "power"):
        (tmp_path / name).mkdir()
    assert hardware.numa_nodes(tmp_path) == 2
    assert (hardware.numa_nodes() or 1) >= 1


def test_the_link_is_that_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ModuleType("pynvml")
    nvml.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    nvml.NVMLError = OSError  # type: ignore[attr-defined]
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    values = {"CurrPcieLinkGeneration": 1, "CurrPcieLinkWidth": 16}
    values |= {"MaxPcieLinkGeneration": 5, "MaxPcieLinkWidth": 16}
    for name, value in values.items():
        setattr(nvml, f"nvmlDeviceGet{name}", lambda gpu, value=value: value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    link = hardware.gpu_link()
    assert link == Link(1, 16, 5, 16)
    assert link.max_gb_per_s == pytest.approx(63, rel=0.01)

    def fails() -> None:
        raise OSError("driver not loaded")

    nvml.nvmlInit = fails  # type: ignore[attr-defined]
    assert hardware.gpu_link() == "not known: NVML says driver not loaded"


def test_without_nvml_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    assert "mmlab[gpu]" in str(hardware.gpu_link())


def test_a_first_touch_is_dearer_than_a_copy_and_a_rate_is_bytes_over_time() -> None:
    found = bandwidth.measure(nbytes=16 << 20, rounds=3)
    assert 0 < found.first_touch < found.memcpy < 1000
    assert found.h2d is None


SLOW, FAST = Bandwidth(10.0, 2.0, 12.0), Bandwidth(10.0, 2.0, 55.0)


@pytest.mark.parametrize(
    ("link", "speed", "status"),
    [
        (Link(5, 16, 5, 16), FAST, "ok"),
        (Link(5, 16, 5, 16), SLOW, "limited"),
        (Link(5, 4, 5, 16), FAST, "limited"),
        (Link(7, 16, 7, 16), SLOW, "ok"),  # a rate that is not known is not judged
        ("not known: no", FAST, "limited"),
    ],
)
def test_a_narrow_link_is_told(
    link: Link | str, speed: Bandwidth, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "gpu_link", lambda: link)
    found = {c.what: c for c in checkup.examine(environment.collect(), speed)}
    assert found["PCIe link"].status == status


@pytest.mark.parametrize(
    ("nbytes", "status"), [(None, "ok"), (8 << 20, "limited"), (1 << 40, "ok")]
)
def test_a_low_limit_on_locked_memory_is_told_with_its_remedy(
    nbytes: int | None, status: str
) -> None:
    check = checkup._memlock(nbytes)
    assert check.status == status
    assert (status == "ok") or "ulimit -l unlimited" in check.found


@pytest.mark.parametrize(
    ("nbytes", "status"), [(None, "limited"), (64 << 20, "limited"), (4 << 30, "ok")]
)
def test_a_small_shared_folder_is_told(nbytes: int | None, status: str) -> None:
    check = checkup._shm(nbytes)
    assert check.status == status and (status == "ok") == ("--shm-size" not in check.found)


def test_several_nodes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "numa_nodes", lambda: 2)
    assert checkup._numa().status == "limited" and "numactl" in checkup._numa().found
