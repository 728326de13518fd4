"""The checks of `mmlab bench gpu` whose logic needs a device but no GPU, on the fake one: they
pass on staging as it is, and fail on a device that breaks what they check."""

from __future__ import annotations

import pytest
import torch
from staging_fakes import FakeDevice, FakeStream

from mmlab.bench.gpu import bounded, delivery, encoder, speed
from mmlab.bench.gpu.context import Context
from mmlab.gemma import PRESETS
from mmlab.staging import MODES, HostDevice

KIB = 1024


class ShortStream(FakeStream):
    """Loses the last byte of what it copies, or of the last part that it gathers."""

    def record(self):  # type: ignore[no-untyped-def]
        for copy in self.device.copies[-1:]:
            self.device.complete(copy)
            target = copy.target if copy.place is None else copy.place
            target.reshape(-1).view(torch.uint8)[-1] ^= 1
        return super().record()


class ShortDevice(FakeDevice):
    def stream(self):  # type: ignore[no-untyped-def]
        return ShortStream(self)


def test_bytes_of_every_mode_are_compared() -> None:
    device = FakeDevice()
    found = list(delivery.exact_bytes(Context(device, mib=100 * KIB)))
    assert [(f.name, f.ok) for f in found] == [(f"bytes, {mode}", True) for mode in MODES]
    assert len(device.copies) > 100 and device.faults == []


def test_a_device_that_loses_a_byte_is_noticed_in_every_mode() -> None:
    found = list(delivery.exact_bytes(Context(ShortDevice(), mib=100 * KIB)))
    assert [f.ok for f in found] == [False] * len(MODES)
    assert "other bytes" in found[0].got


def test_slots_refilled_at_once() -> None:
    found = list(delivery.no_early_refill(Context(FakeDevice(), mib=KIB)))
    # the fake is told to complete each copy before the next batch: one slot is enough for it
    assert found[0].ok
    assert found[1].got.endswith("pinned True")


def test_a_batch_of_another_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BATCHES", 5)
    found = list(delivery.no_early_refill(Context(ShortDevice(), mib=KIB)))
    assert (found[0].ok, found[0].got) == (False, "5 wrong, first [0, 1] in 0")


def test_growing_batches_stay_under_the_budget_by_the_pools_own_count() -> None:
    device = FakeDevice()
    found = list(bounded.pinned_bytes(Context(device, mib=KIB)))
    assert [f.ok for f in found] == [True, None]
    registered = found[0].values["registered_nbytes"]
    assert isinstance(registered, int) and 65 * KIB <= registered <= 256 * KIB


def test_memory_that_could_not_be_pinned_is_no_success() -> None:
    with pytest.warns(UserWarning, match="pageable"):
        found = list(bounded.pinned_bytes(Context(FakeDevice(fail_pin=0), mib=KIB)))
    assert found[0].ok is False


def test_bandwidth_has_a_row_for_every_mode_and_size() -> None:
    found = list(speed.bandwidth(Context(FakeDevice(), mib=KIB)))
    assert len(found) == len(speed.SIZES) * len(MODES)
    assert {f.ok for f in found if f.name.startswith(speed.JUDGED)} <= {True, False}
    assert {f.ok for f in found if not f.name.startswith(speed.JUDGED)} == {None}
    times = found[0].values["seconds"]
    assert isinstance(times, list) and len(times) == speed.ROUNDS - 1


def test_the_reported_time_needs_no_room_on_the_host() -> None:
    device = FakeDevice()
    found = list(speed.reported_time(Context(device, mib=KIB)))
    assert [f.name[:3] for f in found] == ["S12", "S12"]
    assert len(device.copies) == 6 and device.most_nbytes == 1024 * KIB


def test_a_host_device_never_counts_as_pinned() -> None:
    with pytest.raises(RuntimeError, match="cannot pin"):
        list(delivery.exact_bytes(Context(HostDevice(), mib=KIB)))


class SmallEncoder:
    """Counts the images it gets; 16 x 16 pixels each."""

    image_size = 16

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def encode_images(self, pixel_values: torch.Tensor) -> None:
        self.seen.append(tuple(pixel_values.shape))


def test_every_mode_gives_the_encoder_the_same_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SmallEncoder()
    monkeypatch.setattr(encoder, "MODEL", "gemma3-tiny")
    monkeypatch.setattr(encoder, "vision_only", lambda *_: model)
    found = list(encoder.throughput(Context(FakeDevice())))
    assert [f.name for f in found] == [f"images/s, gemma3-tiny, {mode}" for mode in MODES]
    assert model.seen == [(4, 3, 16, 16)] * (4 * len(MODES) * encoder.ROUNDS)
    assert all(isinstance(f.values["images_per_s"], float) for f in found)


def test_a_preset_that_is_not_there_is_a_skipped_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "MODEL", "no-such")
    (skipped,) = encoder.throughput(Context(FakeDevice()))
    assert skipped.ok is None and skipped.got.startswith("skipped")


def test_the_encoder_is_made_without_the_text_model() -> None:
    pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
    model = encoder.vision_only("gemma3-tiny", torch.device("cpu"), 0)
    config = model.model.config
    assert config.get_text_config().num_hidden_layers == 1
    assert (
        config.vision_config.num_hidden_layers == PRESETS["gemma3-tiny"].vision["num_hidden_layers"]
    )
    assert model.dtype == torch.bfloat16
