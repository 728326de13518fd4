"""Tables on disk: what is written comes back, and nothing else is ever met there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet
import pytest
from bench_rows import memory_row, result_row

from mmlab.bench import columns, results
from mmlab.bench.results import SchemaError, Tables
from mmlab.errors import UsageError
from mmlab.measure import environment


def tables(**changes: object) -> Tables:
    return Tables(
        results=[result_row(**changes), result_row(request=1)],
        memory=[memory_row(peak_pss=None, multiple=None)],
        environment=environment.collect(),
    )


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    written = tables()
    results.write(tmp_path, written)
    frame = results.read(tmp_path)
    assert list(frame.columns) == [column.name for column in columns.TABLES["results"]]
    first = frame.iloc[0]
    assert int(first["checksum"]) == 2**64 - 1  # beyond a signed 64-bit integer
    assert first["latency_s"] == 1.0 and not first["pinned"]
    memory = results.read(tmp_path, "memory")
    assert memory["peak_pss"].isna().all()  # missing stays missing: never 0
    assert results.read(tmp_path, "samples").empty
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["schema"] == columns.SCHEMA_VERSION and record["cores"] >= 1


def test_the_csv_is_the_same_table(tmp_path: Path) -> None:
    results.write(tmp_path, tables())
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["request"] for row in rows] == ["0", "1"]
    assert rows[0]["checksum"] == str(2**64 - 1)
    assert rows[0]["engine_threads"] == ""
    assert rows[0]["token_ids"] == "[1, 2]"


def test_every_column_says_what_it_is(tmp_path: Path) -> None:
    for table in columns.TABLES.values():
        names = [column.name for column in table]
        assert len(set(names)) == len(names)
        assert all(column.doc for column in table)
    results.write(tmp_path, tables())
    schema = pyarrow.parquet.read_schema(tmp_path / "results.parquet")
    assert schema.field("wire_nbytes").metadata[b"doc"] == b"bytes of all frames sent"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latency_ms": 1.0}, r"unknown columns \['latency_ms'\]"),
        ({"latency_s": None}, "latency_s: got None, wanted float"),
        ({"latency_s": float("nan")}, "latency_s: got nan"),
        ({"request": 1.5}, "request: got 1.5, wanted int"),
        ({"request": True}, "request: got True, wanted int"),
        ({"pinned": 0}, "pinned: got 0, wanted bool"),
        ({"wire_nbytes": "5"}, "wire_nbytes: got '5', wanted int or None"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        results.write(tmp_path, tables(**changes))
    assert list(tmp_path.glob("results*")) == []


def test_a_row_without_a_column_is_refused() -> None:
    row = result_row()
    del row["seed"]
    with pytest.raises(SchemaError, match=r"row 0: unknown columns \[\], missing \['seed'\]"):
        results.check("results", [row])


def test_writing_again_replaces_and_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.write(tmp_path, tables())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        results.write(tmp_path, tables(latency_s=9.0))
    assert results.read(tmp_path)["latency_s"].tolist() == [1.0, 1.0]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_another_schema_version_is_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "SCHEMA_VERSION", 99)
    results.write(tmp_path, tables())
    monkeypatch.undo()
    with pytest.raises(SchemaError, match="has schema version 99, this mmlab reads 1"):
        results.read(tmp_path)


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        results.read(tmp_path)


@pytest.mark.parametrize("left", [0, 3, 0.5])
def test_a_damaged_file_is_named(tmp_path: Path, left: float) -> None:
    results.write(tmp_path, tables())
    path = tmp_path / "results.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * left) if left < 1 else int(left)])
    with pytest.raises(SchemaError, match=r"results\.parquet is damaged"):
        results.read(tmp_path)
