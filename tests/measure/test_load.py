"""A busy machine is named before and after a measurement, a quiet one is not."""

from __future__ import annotations

import os

import pytest

from mmlab.measure.load import busy_now, busy_text


@pytest.mark.parametrize(
    ("load", "cores", "busy"), [(0.2, 1, False), (1.0, 2, False), (1.3, 2, True), (3.0, 64, False)]
)
def test_busy_is_above_half_a_process_for_each_core(load: float, cores: int, busy: bool) -> None:
    text = busy_text(load, cores)
    assert (text is not None) == busy
    assert text is None or f"load {load} on {cores} cores" in text


def test_a_system_without_load_averages_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "load 99.0" in str(busy_now())
    monkeypatch.setattr(os, "getloadavg", nothing)
    assert busy_now() is None
