"""`mmlab bench staging`: rows that say how often each byte was copied, and over what."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from mmlab.bench.staging import cases, report
from mmlab.bench.staging.cases import SEPARATE, TOGETHER, Case, pairs_of
from mmlab.bench.staging.run import torch_threads
from mmlab.bench.staging.timing import measure, modes_for
from mmlab.cli import main
from mmlab.errors import UsageError
from mmlab.measure.capacity import available_nbytes
from mmlab.staging import MODES, HostDevice

TINY = ["--image-size", "16", "--rounds", "5", "--images", "1,3", "--dtypes", "bfloat16,uint8"]
HERE = ["--device", "cpu", "--threads", "1"]


def test_the_command_prints_and_keeps_rows_that_name_their_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    assert main(["bench", "staging", *TINY, *HERE, "--json", "--out", str(tmp_path)]) == 0
    assert torch.get_num_threads() == before
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert json.loads((tmp_path / "staging.json").read_text()) == printed
    assert printed["environment"]["cpu"] and "9 of 9" in err
    staged = [row for row in printed["rows"] if row["table"] == "stage"]
    assert len(staged) == 2 * 2 * 2 * 2  # images, dtypes, items, modes
    for row in staged:
        exists = row["items"] == TOGETHER or row["images"] == 1
        nbytes = row["images"] * 3 * 16 * 16 * {"uint8": 1, "bfloat16": 2}[row["dtype"]]
        assert row["payload_nbytes"] == nbytes
        assert row["in_place"] == exists
        assert (row["copies"], row["copied_nbytes"]) == ((0, 0) if exists else (1, nbytes))
        assert (row["pinned"], row["device"], row["rounds"]) == (False, "cpu", 5)
        for name in ("stage_s", "ready_s", "memcpy_s", "over_memcpy"):
            assert 0 < row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row["h2d_gb_per_s"] is row["over_plain"] is None  # there was no such copy
    empty = [row for row in printed["rows"] if row["table"] == "overhead"]
    assert [(row["mode"], row["copies"]) for row in empty] == [
        *(("pageable", 0), ("pool", 0)),  # one item is a batch already
        *(("pageable", 1), ("pool", 1)),
    ]


def test_the_table_has_a_line_for_each_case_and_says_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "staging", *TINY, *HERE[:2], "--threads", "1,2"]) == 0
    out = capsys.readouterr().out
    assert out.count("side by side  pool") == 2 * 2 * 2
    for words in (
        "torch threads: 2, 5 rounds, device cpu",
        "/ memcpy (95 %)",
        "2 x 4 B, pool, 1 copies",
    ):
        assert words in out


def test_a_gpu_has_all_modes_and_a_cpu_those_that_differ() -> None:
    assert modes_for(HostDevice()) == ("pageable", "pool")
    device = HostDevice()
    device.is_host = False
    assert modes_for(device) == MODES


def test_separate_images_are_no_batch_and_images_side_by_side_are() -> None:
    for items in (SEPARATE, TOGETHER):
        pairs = pairs_of(Case(3, "bfloat16", 16, items))
        tensors = [item["pixel_values"].data for _, item in pairs if item is not None]
        at = [tensor.data_ptr() for tensor in tensors]  # type: ignore[union-attr]
        assert (at[1] - at[0] == at[2] - at[1] == 3 * 16 * 16 * 2) == (items == TOGETHER)
    registered = HostDevice()
    lent = pairs_of(Case(2, "uint8", 16, SEPARATE), registered)
    rows = measure(Case(2, "uint8", 16, SEPARATE), registered, rounds=5, draw=random.Random(0))
    assert len(lent) == 2 and {row["copies"] for row in rows} == {1}


def test_the_columns_of_a_gpu_are_there_where_its_rows_are() -> None:
    case = Case(2, "uint8", 16, SEPARATE)
    rows = measure(case, HostDevice(), rounds=5, draw=random.Random(0))
    for row in rows:
        row |= {"torch_threads": 1}
    ((_, plain, _),) = report.tables(rows)
    for row in rows:
        row |= {"h2d_gb_per_s": 50.0, "over_plain": 1.02}
    ((_, head, lines),) = report.tables(rows)
    assert set(head) - set(plain) == {"ready", "H2D GB/s", "/ plain"}
    assert {len(line) for line in lines} == {len(head)} and lines[0][-3] == "1.02"


def test_torch_has_its_threads_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.cases([1, 4096], ["float32"], 896)
    monkeypatch.setattr(cases, "available_nbytes", lambda: 1 << 30)
    with pytest.raises(UsageError, match=r"4096 images float32 .* available are 1.*GiB"):
        cases.check_room(plan)
    monkeypatch.undo()
    assert available_nbytes() > 0
    cases.check_room(plan[:1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--images", "0"], "--images '0': wanted numbers from 1 to 4096"),
        (["--images", "1,,8"], "wanted values with commas between them"),
        (["--dtypes", "bfloat"], "unknown dtype 'bfloat': did you mean 'bfloat16'?"),
        (["--threads", "two"], "--threads 'two': wanted numbers from 1 to 1024"),
        (["--rounds", "4"], "5"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--out", __file__], "wanted a folder"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "staging", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and not out and " of " not in err.replace("unknown option of", "")
