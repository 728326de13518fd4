"""A model's name leads to a preset, a directory or a hub id, or to one line that says why not."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gemma_parts import of_images

from mmlab.errors import UsageError
from mmlab.gemma import load_engine, load_frontend, loading
from mmlab.gemma.gemma3.model import Gemma3Engine as EngineModel
from mmlab.gemma.gemma3.processor import Gemma3Frontend as FrontendModel


@pytest.fixture(scope="module")
def saved(
    frontend: FrontendModel, engine: EngineModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny model as a checkpoint: weights, configuration, processor and tokenizer."""
    path = tmp_path_factory.mktemp("checkpoint")
    engine.model.save_pretrained(path)
    frontend.processor.save_pretrained(path)
    return path


@pytest.fixture
def broken(saved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(saved, tmp_path / "broken"))


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_saved_checkpoint_answers_as_the_model_it_was(
    frontend: FrontendModel,
    engine: EngineModel,
    saved: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    wanted = frontend.process("What is it?", [image])
    capfd.readouterr()
    front, back = load_frontend(str(saved)), load_engine(str(saved), torch.device("cpu"))
    assert capfd.readouterr().err == ""  # no progress bars in somebody's log
    got = front.process("What is it?", [image])
    assert got.token_ids == wanted.token_ids
    pixel_values = got.mm.reduce()["pixel_values"]
    assert isinstance(pixel_values, torch.Tensor)
    assert torch.equal(pixel_values, wanted.mm.reduce()["pixel_values"])
    assert front.image_processor == frontend.image_processor
    assert front.dims == frontend.dims == back.dims == engine.dims
    features = back.encode_images(pixel_values)
    assert torch.equal(features, engine.encode_images(pixel_values))
    new = back.generate(got.token_ids, of_images(features), 8).token_ids
    assert new == engine.generate(got.token_ids, of_images(features), 8).token_ids
    assert front.decode(new) == frontend.decode(new)
    assert back.attention == "sdpa" and back.dtype == torch.float32


def test_a_checkpoint_in_bfloat16_is_the_preset_in_bfloat16(saved: Path) -> None:
    one = load_engine(str(saved), "cpu", dtype=torch.bfloat16)
    other = load_engine("gemma3-tiny", "cpu", dtype=torch.bfloat16)
    ids = [2, *[261] * 256, 75]
    features = torch.randn(1, 256, 128)
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert (
        one.generate(ids, of_images(features), 4).token_ids
        == other.generate(ids, of_images(features), 4).token_ids
    )


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "siglip", None])
def test_another_family_is_refused_by_name(broken: Path, family: str | None) -> None:
    edit(broken / "config.json", model_type=family)
    match = rf"model '.*broken': is a {family!r} checkpoint, supported are: gemma3, gemma4$"
    for load in (load_frontend, lambda name: load_engine(name, "cpu")):
        with pytest.raises(UsageError, match=match):
            load(str(broken))


def test_missing_weights_are_refused_not_made_up(broken: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    gone = [name for name in weights if name.endswith("mm_input_projection_weight")]
    assert len(gone) == 1
    del weights[gone[0]]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"1 of its weights are not in .*mm_input_projection"):
        load_engine(str(broken), "cpu")


def test_pickled_weights_are_not_read(broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    torch.save({}, broken / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"broken': cannot be loaded: .*safetensors"):
        load_engine(str(broken), "cpu")


def test_damaged_files_are_one_line_with_the_models_name(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(UsageError, match=r"broken': cannot be loaded: [^\n]+$"):
        load_engine(str(broken), "cpu")
    (broken / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"broken': its config.json cannot be read: [^\n]+$"):
        load_frontend(str(broken))
    (broken / "config.json").write_text("[]")
    with pytest.raises(UsageError, match=r"its config.json cannot be read"):
        load_frontend(str(broken))


def test_an_image_processor_for_another_size_is_refused(broken: Path) -> None:
    file = broken / "processor_config.json"
    config = json.loads(file.read_text())
    config["image_processor"]["size"] = {"height": 224, "width": 224}
    file.write_text(json.dumps(config))
    with pytest.raises(UsageError, match="makes 224 x 224 pixels, its vision tower wants 896"):
        load_frontend(str(broken))


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"unknown model 'gemma3-tini': did you mean 'gemma3-tiny'"
    ):
        load_frontend("gemma3-tini")
    with pytest.raises(
        UsageError, match=r"unknown model '': known: gemma3-tiny, gemma4-tiny, .*a directory, a hub"
    ):
        load_engine("", "cpu")
    with pytest.raises(UsageError, match=r"unknown model 'a/b/c'"):
        load_frontend("a/b/c")
    with pytest.raises(UsageError, match=r"nowhere': does not exist, wanted a directory"):
        load_frontend(str(tmp_path / "nowhere"))
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(UsageError, match=r"file': is a file, wanted a directory"):
        load_frontend(str(file))
    with pytest.raises(UsageError, match=r"has no config.json"):
        load_frontend(str(tmp_path))


def test_a_hub_id_without_a_network_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    start = time.perf_counter()
    with pytest.raises(UsageError) as caught:
        load_frontend("google/gemma-3-4b-it")
    assert time.perf_counter() - start < 10  # the hub's client alone takes 23 s
    message = str(caught.value)
    assert "'google/gemma-3-4b-it'" in message and "not in the local cache" in message
    assert "http://127.0.0.1:9" in message and "works without a network" in message
    assert "\n" not in message
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        load_engine("google/gemma-3-4b-it", "cpu")


def test_a_hub_id_in_the_cache_needs_no_network(
    saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frontend: FrontendModel
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--somebody--tiny"
    shutil.copytree(saved, repository / "snapshots" / "0123abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_frontend("somebody/tiny").dims == frontend.dims
    assert load_engine("somebody/tiny", "cpu").dims == frontend.dims


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "NEEDED", ("torch", "no_such_thing"))
    with pytest.raises(UsageError, match=r"'gemma3-tiny': no_such_thing not installed.*mmlab\[mod"):
        load_frontend("gemma3-tiny")
