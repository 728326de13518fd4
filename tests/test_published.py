"""The figures of others are drawn beside the reader's own: each must parse and have a source."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
COLUMNS = ["source", "what", "config", "case", "metric", "unit", "value"]


@pytest.fixture
def rows() -> list[dict[str, str]]:
    with (PUBLISHED / "published.csv").open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def test_every_value_is_a_number_or_the_documented_text(rows: list[dict[str, str]]) -> None:
    figures = [row for row in rows if row["source"] != "note"]
    assert len(figures) > 50
    for row in figures:
        assert row["metric"] and row["unit"], row
        if row["value"] == "out of memory":
            assert row["metric"] == "peak memory", row
        else:
            assert float(row["value"]) > 0, row


def test_a_note_says_something_and_carries_no_value(rows: list[dict[str, str]]) -> None:
    notes = [row for row in rows if row["source"] == "note"]
    assert notes
    for row in notes:
        assert len(row["config"]) > 40
        assert not row["value"] and not row["unit"]


def test_every_row_is_whole_and_stands_once(rows: list[dict[str, str]]) -> None:
    assert all(None not in row and None not in row.values() for row in rows)
    keys = [tuple(row[column] for column in COLUMNS[:-1]) for row in rows]
    assert len(set(keys)) == len(keys)


def test_the_readme_names_every_column_and_source(rows: list[dict[str, str]]) -> None:
    readme = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    for name in COLUMNS + sorted({row["source"] for row in rows}):
        assert f"`{name}`" in readme, name


def test_the_gain_of_16432_is_the_published_one(rows: list[dict[str, str]]) -> None:
    def memory(config: str, case: str) -> float:
        row = next(
            row
            for row in rows
            if (row["config"], row["case"], row["metric"]) == (config, case, "peak memory")
        )
        return float(row["value"])

    assert memory("baseline (zero-copy disabled)", "32 images") == 22.54
    assert memory("#16432 (zero-copy disabled)", "32 images") == 5.85
    assert memory("#16432 + zero-copy", "1 prompt x 32 images") == 5.9
