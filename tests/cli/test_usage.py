"""Bad input: one line that names it and what is known, exit code 2, and nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmlab import notebook
from mmlab.bench import validate
from mmlab.cli import main
from mmlab.cli.sizes import parse_nbytes
from mmlab.errors import UsageError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and a notebook that must not run."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(notebook, "execute", never)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategies", "msgpak"], "unknown strategy 'msgpak': did you mean 'msgpack'? known: p"),
        (["--strategies", "msgpack,msgpack"], "strategy 'msgpack' is given twice"),
        (["--strategies", "msgpack-pinned", "--device", "cpu"], "'msgpack-pinned' needs a GPU"),
        (["--workload", "docmix"], "unknown workload 'docmix': did you mean 'doc-mix'?"),
        (["--model", "gemma3-tini"], "unknown model 'gemma3-tini': did you mean 'gemma3-tiny'?"),
        (["--model", "./nowhere"], "model './nowhere': does not exist"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--scale", "0"], "scale must be above 0 and at most 1, got 0"),
        (["--scale", "2"], "scale must be above 0 and at most 1, got 2"),
        (["--scale", "big"], "--scale"),
        (["--repeats", "-1"], "repeats must be at least 1, got -1"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--repeats", "99999999999999999999"], "repeats must be at most 1000"),
        (["--full", "--scale", "0.5"], "--full is --scale 1: give it or --scale 0.5, not both"),
        (["--device", "gpu"], "unknown device 'gpu': a GPU is called 'cuda'"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--max-new-tokens", "0"], "max_new_tokens must be at least 1"),
        (["--engine-threads", "0"], "engine_threads must be at least 1"),
        (["--images", "no/such/dir"], "no/such/dir' does not exist"),
        (["--max-inflight", "lots"], "size 'lots': wanted a number with B, kB, MB"),
        (["-p", "batch_sizee=8"], "batch_sizee"),
        (["-p", "scale"], "parameter 'scale': wanted NAME=VALUE"),
        (["-p", "scale=big"], "scale"),
        (
            ["--scal", "1"],
            "unknown option of mmlab run '--scal': did you mean '--scale'? known: --",
        ),
        (["surplus"], "surplus"),
    ],
)
def test_run_refuses_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mmlab: ") and captured.err.count("\n") == 1
    assert words in captured.err
    assert list(elsewhere.iterdir()) == []


def test_a_request_over_the_budget_is_refused_with_both_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--full", "--max-inflight", "200MB"]) == 2
    error = capsys.readouterr().err
    assert "32 images, 308281344 bytes" in error and "200000000 bytes" in error


def test_a_folder_without_images_and_a_broken_image_are_named(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    (elsewhere / "pages").mkdir()
    assert main(["run", "--images", "pages"]) == 2
    assert "pages' has no image files" in capsys.readouterr().err
    (elsewhere / "pages" / "torn.png").write_bytes(b"\x89PNG")
    assert main(["run", "--images", "pages", "--strict"]) == 2
    assert "torn.png cannot be decoded" in capsys.readouterr().err


def test_results_never_mix_with_what_is_there(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    (elsewhere / "old").mkdir()
    (elsewhere / "old" / "results.csv").touch()
    assert main(["run", "--out", "old"]) == 2
    assert "old' is not empty" in capsys.readouterr().err
    assert main(["run", "--out", "old/results.csv"]) == 2
    assert "is a file" in capsys.readouterr().err


def test_two_runs_never_share_a_folder(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    with validate.new_folder(elsewhere / "out"):
        assert main(["run", "--out", "out"]) == 2
        assert "out' is not empty" in capsys.readouterr().err
        with (
            pytest.raises(UsageError, match="another run is writing to it"),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(Path, "iterdir", lambda _: iter(()))  # both saw it empty
            with validate.new_folder(elsewhere / "out"):
                pass
    with validate.new_folder(elsewhere / "out"):  # free again, and nothing of the claim is left
        pass
    assert list((elsewhere / "out").iterdir()) == []


def test_a_folder_named_by_the_second_gets_a_number_where_it_is_taken(elsewhere: Path) -> None:
    first = validate.default_folder(elsewhere / "runs", "2026-01-31T12-03-04Z")
    first.mkdir(parents=True)
    second = validate.default_folder(elsewhere / "runs", "2026-01-31T12-03-04Z")
    assert (first.name, second.name) == ("2026-01-31T12-03-04Z", "2026-01-31T12-03-04Z-2")


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runn"]) == 2
    assert "unknown command 'runn': did you mean 'run'? known: run," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1048576", 1 << 20), ("512MiB", 512 << 20), ("1.5 gb", 1_500_000_000), ("2kB", 2000)],
)
def test_sizes_as_people_type_them(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 TiB", "1,5GB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="wanted a number with B"):
        parse_nbytes(text)


def test_a_strategy_for_those_who_name_it_is_not_among_the_defaults() -> None:
    few = ("pickle", "msgpack-inline", "msgpack", "arena")
    assert validate.default_strategies("cpu") == validate.parse_strategies("all", "cpu") == few
    assert validate.parse_strategies("torch-shm,msgpack", "cpu") == ("torch-shm", "msgpack")
    validate.check_strategies(("torch-shm",), "cpu")
