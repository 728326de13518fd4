"""Presets: the large ones have the published sizes, and are refused where they do not fit."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from mmlab.errors import UsageError
from mmlab.gemma import PRESETS, load_engine, load_frontend, weights
from mmlab.gemma.dims import Dims
from mmlab.gemma.gemma3 import making as gemma3
from mmlab.gemma.gemma3.dims import dims_of as gemma3_dims
from mmlab.gemma.gemma4 import engine_making as gemma4
from mmlab.gemma.gemma4.frontend_making import dims_of as gemma4_dims

MAKING: dict[str, ModuleType] = {"gemma3": gemma3, "gemma4": gemma4}
# Billions. The wholes are published, 5.1 with all embeddings (https://apxml.com/models/gemma-4-e2b,
# https://featherless.ai/models/unsloth/gemma-3-4b-pt/readme); the parts are what their dimensions
# give, so that a change of one is noticed.
SIZES = {
    "gemma3-4b": {"": 4.3, "vision_tower": 0.42, "language_model": 3.88},
    "gemma4-e2b": {"": 5.1, "vision_tower": 0.167, "audio_tower": 0.305},
}


def on_meta(name: str) -> torch.nn.Module:
    preset = PRESETS[name]
    with weights.device_and_dtype(torch.device("meta"), torch.bfloat16):
        made = MAKING[preset.family].preset_model(preset)
    assert isinstance(made, torch.nn.Module)
    return made


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", SIZES)
def test_the_large_presets_have_the_published_sizes(name: str) -> None:
    model = on_meta(name)
    for part, wanted in SIZES[name].items():
        found = count(model.get_submodule(f"model.{part}") if part else model)
        print(f"{name} {part or 'whole'}: {found:,} parameters")
        assert found == pytest.approx(wanted * 1e9, rel=0.01)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    # What is counted is what is asked for: two bytes each, some buffers besides.
    assert 0 <= weights.nbytes(model) - 2 * count(model) < 100_000
    rotary = [b for n, b in model.named_buffers() if n.endswith("inv_freq")]
    assert rotary and all(buffer.dtype == torch.float32 for buffer in rotary)


def test_dims_are_those_of_the_configuration() -> None:
    large3 = gemma3_dims(gemma3.preset_config(PRESETS["gemma3-4b"]))
    assert large3 == Dims({"image": 261, "prompt": -1}, 2560, 262_208, 131_072)
    large4 = gemma4_dims(gemma4.preset_config(PRESETS["gemma4-e2b"]))
    media = {"image": 261, "video": 266, "audio": 264, "prompt": -1}
    assert large4 == Dims(media, 1536, 262_144, 131_072)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_frontend_speaks_the_ids_of_its_model(name: str) -> None:
    front = load_frontend(name)
    preset = PRESETS[name]
    dims_of = {"gemma3": gemma3_dims, "gemma4": gemma4_dims}[preset.family]
    assert front.dims == dims_of(MAKING[preset.family].preset_config(preset))
    assert front.decode([75, 76, preset.vocab_size - 1, 77]).startswith("HI")
    assert front.decode(front.process("Grüße").token_ids) == "Grüße"


def test_the_tables_of_gemma3_4b_are_turned_as_published() -> None:
    text = gemma3.preset_config(PRESETS["gemma3-4b"]).text_config
    assert text.rope_parameters["full_attention"] == {
        "rope_type": "linear",
        "factor": 8.0,
        "rope_theta": 1_000_000.0,
    }
    assert text.rope_parameters["sliding_attention"]["rope_theta"] == 10_000.0
    kinds = text.layer_types
    assert len(kinds) == 34 and kinds.count("full_attention") == 5
    assert text.sliding_window == 1024


def test_e2b_has_four_sliding_layers_before_a_global_one_and_shares_the_last_twenty() -> None:
    text = gemma4.preset_config(PRESETS["gemma4-e2b"]).text_config
    assert text.layer_types == [*["sliding_attention"] * 4, "full_attention"] * 7
    assert text.num_kv_shared_layers == 20
    layers = on_meta("gemma4-e2b").get_submodule("model.language_model.layers")
    widths = [layer.mlp.intermediate_size for layer in layers]  # type: ignore[union-attr]
    assert widths == [6144] * 15 + [12_288] * 20


@pytest.mark.parametrize(
    ("name", "needed"), [("gemma3-4b", 17_200_000_000), ("gemma4-e2b", 20_417_000_000)]
)
def test_what_does_not_fit_is_refused_before_it_is_made(
    name: str, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "available_nbytes", lambda: 12_345_678_901)
    with pytest.raises(UsageError) as caught:
        load_engine(name, "cpu")
    message = str(caught.value)
    assert f"{name!r}: its weights need {str(needed)[:4]}" in message and "float32" in message
    assert "12345678901 bytes (11.50 GiB) are free on cpu" in message
    assert torch.get_default_dtype() == torch.float32  # as it was


def test_drawing_in_place_is_seeded_and_leaves_global_states_alone() -> None:
    preset = PRESETS["gemma4-tiny"]
    cpu, dtype = torch.device("cpu"), torch.bfloat16
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (
        weights.draw_in_place("x", lambda: gemma4.preset_model(preset), cpu, dtype, seed)
        for seed in (7, 7, 8)
    )
    assert torch.equal(torch.rand(3), wanted) and torch.rand(1).dtype == torch.float32
    pairs = list(zip(one.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) and a.dtype == dtype for a, b in pairs)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert one.config.text_config._attn_implementation == "sdpa"
