"""A workload that a model cannot take is refused by name, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmlab.bench import validate, workloads
from mmlab.bench.families import check_modalities, family_of
from mmlab.bench.spec import RunSettings
from mmlab.errors import UsageError


def settings(workload: str, model: str) -> RunSettings:
    return RunSettings(
        strategies=("msgpack",), workload=workload, model=model, device="cpu", scale=0.25
    )


@pytest.mark.parametrize("workload", ["video", "audio"])
def test_gemma_3_takes_images_only_and_the_models_that_can_are_named(workload: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate.validate(settings(workload, "gemma3-tiny"))
    text = str(caught.value)
    assert text.startswith(f"workload '{workload}' has {workload}, and model 'gemma3-tiny' takes ")
    assert "takes image only; models that can: " in text and text.endswith("echo")
    assert "gemma3-tiny" not in text.partition("models that can")[2]


@pytest.mark.parametrize("workload", workloads.WORKLOADS)
def test_echo_takes_every_workload(workload: str) -> None:
    assert validate.validate(settings(workload, "echo")) == []


@pytest.mark.parametrize("workload", ["doc-mix", "single", "multi", "ragged", "many-small"])
def test_workloads_of_images_are_taken_by_all(workload: str) -> None:
    validate.validate(settings(workload, "gemma3-tiny"))


def test_a_checkpoint_is_judged_by_its_own_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    assert family_of(str(tmp_path)) == "gemma3"
    with pytest.raises(UsageError, match="takes image only"):
        check_modalities("video", workloads.get("video").requests(), str(tmp_path))


def test_an_own_file_is_checked_like_those_that_ship(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('question = "q"\n[[groups]]\nprompts = 1\nimages = 1\nvideos = 1\naudios = 1\n')
    with pytest.raises(UsageError, match=r"workload 'mine\.toml' has video and audio, and model"):
        validate.validate(settings(str(path), "gemma3-tiny"))
    path.write_text('question = "q"\n[[groups]]\nprompts = 1\nimage = 1\n')
    with pytest.raises(UsageError, match=r"mine\.toml': .*unknown field `image`"):
        validate.validate(settings(str(path), "gemma3-tiny"))
