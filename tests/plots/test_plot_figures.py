"""Every figure, drawn from rows: labelled axes with units, fixed legend, stamp, nothing cut off."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from plot_rows import memory_rows, result_rows

from mmlab import plots
from mmlab.errors import UsageError

UNIT = re.compile(r"\((s|ms|µs|x)\)")
THREE = ("pickle", "msgpack-inline", "msgpack")
SETS = {"three": THREE, "two": ("msgpack", "my-way"), "all": plots.ORDER}

FIGURES: dict[str, Callable[[tuple[str, ...]], Figure]] = {
    "latency": lambda names: plots.latency(result_rows(names)),
    "latency-no-mix": lambda names: plots.latency(result_rows(names, mix=False)),
    "latency-one-sample": lambda names: plots.latency(
        result_rows(names, cases={"4 images": (4, 1)}, repeats=1, mix=False)
    ),
    "latency-long-names": lambda names: plots.latency(
        result_rows(names, {"256 small thumbnails": (256, 1), "one very large page": (1, 1)})
    ),
    "stages": lambda names: plots.stages(result_rows(names)),
    "summary-no-memory": lambda names: plots.summary(result_rows(names), []),
    "memory": lambda names: plots.memory(memory_rows(names), result_rows(names)),
    "summary": lambda names: plots.summary(
        result_rows(names), memory_rows(names), plots.read_published()
    ),
}


def _texts(figure: Figure) -> list[Text]:
    """All texts that are drawn: with words, visible, and no label of a tick outside its axis."""
    FigureCanvasAgg(figure).draw()
    outside = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            outside |= {id(tick.label1) for tick in ticks if not low <= tick.get_loc() <= high}
    return [
        text
        for text in figure.findobj(Text)
        if isinstance(text, Text)
        and text.get_visible()
        and text.get_text().strip()
        and id(text) not in outside
    ]


@pytest.mark.parametrize("names", SETS.values(), ids=SETS)
@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_figures_have_units_and_a_stamp_and_no_text_cut_off_or_overlapping(
    draw: Callable[[tuple[str, ...]], Figure], names: tuple[str, ...]
) -> None:
    figure = draw(names)
    for axes in figure.axes:
        labels = [axes.get_xlabel(), axes.get_ylabel()]
        assert any(UNIT.search(label) for label in labels), labels
        assert axes.get_title(loc="left")
    texts = _texts(figure)
    words = " ".join(text.get_text() for text in texts)
    assert "AMD EPYC 7B13, 2 cores, pageable host memory" in words
    assert "missing" not in words
    assert "2026-11-30" in words
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    for said, box in boxes:
        assert box.x0 >= -1 and box.x1 <= width + 1, f"{said!r} is cut off at a side"
        assert box.y0 >= -1 and box.y1 <= height + 1, f"{said!r} is cut off above or below"
    for (said, one), (other, two) in itertools.combinations(boxes, 2):
        wide = min(one.x1, two.x1) - max(one.x0, two.x0)
        high = min(one.y1, two.y1) - max(one.y0, two.y0)
        assert wide <= 2 or high <= 4, f"{said!r} overlaps {other!r}"


def test_the_legend_is_in_the_fixed_order_whatever_the_order_of_the_rows() -> None:
    rows = result_rows(("msgpack", "arena", "pickle"))
    legend = plots.latency(rows[::-1]).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["pickle", "msgpack", "arena"]
    assert [h.get_color() for h in legend.legend_handles] == [
        plots.look(name).colour for name in ("pickle", "msgpack", "arena")
    ]


def test_latency_draws_the_median_of_the_rows_and_only_the_sequential_ones() -> None:
    rows = result_rows(("msgpack",), {"4 images": (4, 1)}, repeats=3, mix=True)
    sequential = sorted(float(str(r["latency_s"])) for r in rows if r["phase"] == "sequential")
    axes = plots.latency(rows).axes[0]
    marker = next(line for line in axes.lines if line.get_marker() == "o")
    assert "(s)" in axes.get_ylabel()
    assert float(marker.get_ydata()[0]) == pytest.approx(sequential[1])


def test_stages_are_stacked_to_the_sum_of_their_medians() -> None:
    rows = result_rows(("msgpack",), {"4 images": (4, 1)}, repeats=1, mix=False)
    axes = plots.stages(rows).axes[0]
    right = max(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert right == pytest.approx(float(str(rows[0]["latency_s"])) / 1.01)


def test_a_missing_memory_sample_is_missing_and_not_zero() -> None:
    rows = memory_rows(("msgpack",))
    for row in rows:
        if row["process"] == "engine":
            row["multiple"] = None
    figure = plots.memory(rows)
    engine = figure.axes[1]
    assert not engine.patches
    assert "not measured" in [text.get_text() for text in engine.texts]
    summary = plots.summary(result_rows(("msgpack",)), rows)
    assert "engine not measured" in [text.get_text() for text in summary.axes[1].texts]


def test_a_run_without_memory_trials_has_the_summary_of_its_times(tmp_path: Path) -> None:
    rows = result_rows(THREE)
    figure = plots.summary(rows, [])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Time from processor to device"]
    assert len(figure.axes[0].patches) == 3
    drawn = plots.draw(rows, [], tmp_path)
    assert list(drawn) == ["summary", "latency", "stages"]
    pytest.importorskip("IPython", reason="IPython is not installed")
    said = getattr(plots.picture(drawn, "memory"), "data", "")
    assert said == "*memory: not measured in this run.*"


@pytest.mark.parametrize(
    ("repeats", "cases", "said"),
    [
        (1, {"4 images": (4, 1)}, "n = 1 sample,"),
        (5, {"4 images": (4, 2)}, "n = 10 samples,"),
        (5, {"4 images": (4, 8), "32 images": (32, 1)}, "n = 5 to 40 samples,"),
    ],
)
def test_latency_says_how_many_samples_a_marker_stands_for(
    repeats: int, cases: dict[str, tuple[int, int]], said: str
) -> None:
    rows = result_rows(("msgpack",), cases, repeats=repeats, mix=False)
    assert said in plots.latency(rows).texts[-1].get_text()


def test_stages_say_why_their_sum_is_not_the_median_of_the_table() -> None:
    said = plots.stages(result_rows(THREE)).texts[-1].get_text()
    assert "sum of its stages' medians, not the median of the sum" in said


def test_pss_is_explained_where_it_is_named() -> None:
    rows = result_rows(THREE)
    for figure in (plots.memory(memory_rows(THREE), rows), plots.summary(rows, memory_rows(THREE))):
        words = " ".join(text.get_text() for text in _texts(figure))
        assert ("PSS" in words) == ("PSS: memory of a process, shared pages divided" in words)


def test_the_mix_has_one_name_in_every_figure_and_table() -> None:
    rows = result_rows(THREE)
    words = " ".join(text.get_text() for text in _texts(plots.latency(rows)))
    assert "All at once" in words
    assert not re.search(r"\b(mix|together)\b", words)


@pytest.mark.parametrize("absent", [None, math.nan])
def test_rows_with_a_stage_missing_are_drawn_without_it(absent: float | None) -> None:
    rows = result_rows(("msgpack",), mix=False)
    for row in rows:
        row["h2d_s"] = absent
    assert plots.stages(rows).axes
    assert plots.latency(rows).axes


def test_no_rows_is_an_error_that_says_so() -> None:
    for draw in (plots.latency, plots.stages, plots.memory):
        with pytest.raises(UsageError, match="no rows to draw"):
            draw([])


def test_a_data_frame_draws_the_same_figure_as_its_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = result_rows(THREE)
    plain = plots.save(plots.latency(rows), tmp_path / "rows", "latency")
    frame = plots.save(plots.latency(pandas.DataFrame(rows)), tmp_path / "frame", "latency")
    assert plain.read_bytes() == frame.read_bytes()


def test_rows_of_two_machines_say_so_in_the_stamp() -> None:
    rows = result_rows(("msgpack",))
    rows += [row | {"device": "cuda:0", "env_gpu": "H200", "pinned": True} for row in rows]
    stamp = plots.latency(rows).texts[-1].get_text()
    assert "2 machines" in stamp
    assert "H200, pinned host memory" in stamp


def test_the_published_note_gives_the_figures_of_the_table_or_nothing() -> None:
    note = plots.published_note(plots.read_published())
    assert note.startswith("For comparison, published with vllm#16432 (")
    assert "9.9 → 4.8 GB" in note
    assert "24.5 → 10.0 s" in note
    assert plots.published_note([]) == ""
