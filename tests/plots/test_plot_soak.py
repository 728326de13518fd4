"""The figure of `mmlab bench soak`: memory over time, and both quiet readings marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmlab.plots import style
from mmlab.plots.soak import soak


def result(seconds: int, arena: bool = True, readings: int = 2) -> dict[str, object]:
    rows = [
        {
            "time_s": float(t),
            "pss_frontend": 500_000_000 if t != 5 else None,
            "pss_engine": 600_000_000,
            "arena_live_nbytes": t * 1_000_000 if arena else None,
            "requests_inflight": 3,
            "nbytes_inflight": 100,
            "answered_per_s": 200.0,
        }
        for t in range(1, seconds + 1)
    ]
    quiet = [
        {
            "name": name,
            "time_s": at,
            "frontend": {"pss": 400_000_000},
            "engine": {"pss": 600_000_000 + pss},
        }
        for name, at, pss in (("after 60 s", 60.0, 0), ("at the end", float(seconds), 5_000_000))
    ]
    settings = {"strategy": "arena" if arena else "msgpack"}
    return {"rows": rows, "readings": quiet[:readings], "settings": settings, "device": "cpu"}


@pytest.mark.parametrize("arena", [True, False])
def test_lines_and_readings_with_units(arena: bool, tmp_path: Path) -> None:
    figure = soak(result(600, arena), "a machine, a day")
    memory, load = figure.axes
    assert (memory.get_ylabel(), load.get_ylabel()) == ("PSS (MB)", "answered / s")
    assert load.get_xlabel() == "minutes"
    legend = memory.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["both", "frontend", "engine", *(["arena, live"] if arena else [])]
    assert [text.get_text() for text in memory.texts] == [
        "quiet, after 60 s: 1000.0 MB",
        "quiet, at the end: 1005.0 MB",
    ]
    texts = [text.get_text() for text in figure.texts]
    assert any("a machine, a day" in text for text in texts)
    assert "engine on cpu" in figure.get_suptitle() and "10 minutes" in figure.get_suptitle()
    assert style.save(figure, tmp_path, "soak").stat().st_size > 10_000


def test_a_soak_that_was_broken_off_can_be_drawn() -> None:
    figure = soak(result(20, readings=0), "a machine")
    assert figure.axes[1].get_xlabel() == "seconds" and not figure.axes[0].texts
    assert "20 seconds" in figure.get_suptitle()
