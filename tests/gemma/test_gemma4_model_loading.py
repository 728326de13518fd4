"""A Gemma 4 checkpoint: what was saved answers as it did, what is missing or pickled is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mmlab import group
from mmlab.errors import UsageError
from mmlab.gemma import EngineModel, FrontendModel, load_engine, load_frontend
from mmlab.gemma.gemma4.model import Gemma4Engine
from mmlab.gemma.gemma4.processor import Gemma4Frontend


@pytest.fixture(scope="module")
def halves() -> tuple[Gemma4Frontend, Gemma4Engine]:
    front, engine = load_frontend("gemma4-tiny"), load_engine("gemma4-tiny", "cpu")
    assert isinstance(front, Gemma4Frontend) and isinstance(engine, Gemma4Engine)
    return front, engine


@pytest.fixture(scope="module")
def saved(
    halves: tuple[Gemma4Frontend, Gemma4Engine], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("checkpoint4")
    halves[1].model.save_pretrained(path)
    halves[0].processor.save_pretrained(path)
    return path


def answer(front: FrontendModel, engine: EngineModel) -> list[int]:
    """To an image, a video and a sound."""
    rng = np.random.default_rng(0)
    done = front.process(
        "What is it?",
        [rng.integers(0, 256, (200, 300, 3), np.uint8)],
        videos=[rng.integers(0, 256, (3, 60, 80, 3), np.uint8)],
        audios=[rng.standard_normal(8_000).astype(np.float32) / 9],
    )
    features = {
        batch.modality: engine.encode(batch.modality, batch.reduce())
        for batch in group(done.mm.pairs())
    }
    assert features.keys() == {"image", "video", "audio"}
    return engine.generate(done.token_ids, features, 12).token_ids


def test_a_saved_checkpoint_answers_as_the_model_it_was(
    halves: tuple[Gemma4Frontend, Gemma4Engine], saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    front, engine = load_frontend(str(saved)), load_engine(str(saved), "cpu")
    assert capfd.readouterr().err == ""  # no progress bars in somebody's log
    assert front.dims == engine.dims == halves[0].dims == halves[1].dims
    assert answer(front, engine) == answer(*halves)
    for (name, one), other in zip(
        halves[1].module.named_buffers(), engine.module.buffers(), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_checkpoint_in_bfloat16_is_the_preset_in_bfloat16(saved: Path) -> None:
    one = load_engine(str(saved), "cpu", dtype=torch.bfloat16)
    other = load_engine("gemma4-tiny", "cpu", dtype=torch.bfloat16)
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    front = load_frontend(str(saved))
    assert len(answer(front, one)) == 12


def test_missing_and_pickled_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = Path(shutil.copytree(saved, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    gone = next(name for name in weights if "embed_audio" in name)
    del weights[gone]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"broken': 1 of its weights are not in .*embed_audio"):
        load_engine(str(broken), "cpu")
    (broken / "model.safetensors").unlink()
    torch.save({}, broken / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"broken': cannot be loaded: .*safetensors"):
        load_engine(str(broken), "cpu")
