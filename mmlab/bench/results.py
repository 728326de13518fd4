"""Result tables on disk: parquet for programs, CSV for people, and the record of the machine.

Files are written beside their final name and moved there in one step, so that a reader, or a run
that is interrupted, never meets half a table. Rows are checked against `columns` before they are
written and the schema's version when they are read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mmlab.bench.columns import SCHEMA_VERSION, TABLES, Column
from mmlab.errors import MMLabError, UsageError
from mmlab.measure.environment import Environment

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Value = str | int | float | bool | None
Row = dict[str, Value]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "uint64": (int,),
    "float": (float, int),
    "bool": (bool,),
}


class SchemaError(MMLabError, ValueError):
    """Rows or a file that do not have the columns of this version."""


@dataclass
class Tables:
    """The rows of one run. `environment` is None only where a file of a run lacks it."""

    results: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    trials: list[Row] = field(default_factory=list)
    environment: Environment | None = None


def environment_columns(environment: Environment) -> Row:
    """The record as `env_*` values for a row."""
    return {f"env_{name}": value for name, value in msgspec.to_builtins(environment).items()}


def check(table: str, rows: Sequence[Mapping[str, Value]]) -> None:
    """SchemaError where a row lacks a column, has an unknown one, or a value of another type."""
    columns = {column.name: column for column in TABLES[table]}
    for number, row in enumerate(rows):
        unknown, missing = row.keys() - columns.keys(), columns.keys() - row.keys()
        if unknown or missing:
            raise SchemaError(
                f"{table} row {number}: unknown columns {sorted(unknown)}, "
                f"missing {sorted(missing)}"
            )
        for name, value in row.items():
            if not _fits(columns[name], value):
                raise SchemaError(
                    f"{table} row {number}, {name}: got {value!r}, wanted {columns[name].kind}"
                    f"{' or None' if columns[name].optional else ''}"
                )


def _fits(column: Column, value: Value) -> bool:
    if value is None:
        return column.optional
    if isinstance(value, bool):
        return column.kind == "bool"
    if isinstance(value, float) and not math.isfinite(value):
        return False  # a number that could not be measured is None
    return isinstance(value, _PYTHON_TYPES[column.kind])


def write(folder: Path, tables: Tables) -> None:
    """`results`, `memory`, `samples`, `trials` as .parquet and .csv, and environment.json."""
    import pyarrow.csv
    import pyarrow.parquet

    for name in TABLES:
        rows: list[Row] = getattr(tables, name)
        check(name, rows)
        table = _arrow(name, rows)
        with _replacing(folder / f"{name}.parquet") as path:
            pyarrow.parquet.write_table(table, path)
        with _replacing(folder / f"{name}.csv") as path:
            pyarrow.csv.write_csv(table, path)
    if tables.environment is not None:
        with _replacing(folder / "environment.json") as path:
            record = {"schema": SCHEMA_VERSION, **msgspec.to_builtins(tables.environment)}
            path.write_text(json.dumps(record, indent=2) + "\n")


def read(folder: Path, table: str = "results") -> pd.DataFrame:
    """One table of a run's folder. UsageError: no such file; SchemaError: of another version."""
    import pandas as pd
    import pyarrow.parquet

    path = Path(folder) / f"{table}.parquet"
    if not path.is_file():
        raise UsageError(f"{path} is not there: the folder of a run has {', '.join(TABLES)}")
    try:
        arrow = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise SchemaError(f"{path} is damaged or no parquet file: {error}") from error
    version = int((arrow.schema.metadata or {}).get(b"mmlab_schema", b"0"))
    if version != SCHEMA_VERSION:
        raise SchemaError(
            f"{path} has schema version {version}, this mmlab reads {SCHEMA_VERSION}: "
            "measure again, or read it with the version that wrote it"
        )
    frame = arrow.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    return frame


def frame(table: str, rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as `read` would give them, without a file between."""
    check(table, rows)
    return _arrow(table, rows).to_pandas()


def _arrow(name: str, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "uint64": pa.uint64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
    }
    schema = pa.schema(
        [
            pa.field(c.name, types[c.kind], c.optional, metadata={"doc": c.doc})
            for c in TABLES[name]
        ],
        metadata={"mmlab_schema": str(SCHEMA_VERSION)},
    )
    columns = [pa.array([row[c.name] for row in rows], type=types[c.kind]) for c in TABLES[name]]
    return pa.Table.from_arrays(columns, schema=schema)


class _replacing:
    """A path to write to, moved to its final name when the block ends well, else removed."""

    def __init__(self, final: Path) -> None:
        self._final = final
        self._draft = final.with_name(f".{final.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        return self._draft

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._draft.replace(self._final)
        else:
            self._draft.unlink(missing_ok=True)
