"""What is a clip of sound, and which one of them is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab import UsageError
from mmlab.gemma.audios import as_audio

RATE = 16_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def test_every_kind_of_samples_is_the_same_sound() -> None:
    assert as_audio(TONE, 0, RATE) is TONE
    assert np.array_equal(as_audio(TONE.astype(np.float64), 0, RATE), TONE)
    assert np.array_equal(as_audio(torch.from_numpy(TONE), 0, RATE), TONE)
    assert np.array_equal(as_audio((TONE, RATE), 0, RATE), TONE)
    whole = np.array([-32768, 0, 16384, 32767], np.int16)
    assert as_audio(whole, 0, RATE).tolist() == [-1.0, 0.0, 0.5, 32767 / 32768]
    assert as_audio(torch.from_numpy(whole), 0, RATE).dtype == np.float32


@pytest.mark.parametrize("given", [8_000, 44_100, 48_000])
def test_another_rate_is_resampled_to_the_same_tone(given: int) -> None:
    there = (0.5 * np.sin(2 * np.pi * 440 * np.arange(given) / given)).astype(np.float32)
    made = as_audio((there, np.int64(given)), 0, RATE)
    assert made.shape == (RATE,) and made.dtype == np.float32
    inner = slice(RATE // 10, -RATE // 10)  # the filter rings at the ends
    assert np.abs(made[inner] - TONE[inner]).max() < 0.01


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array([0.0, np.nan]), "got NaN or infinite samples"),
        (np.array([0.0, -np.inf, 1.0]), "got NaN or infinite samples"),
        (np.empty(0, np.float32), "got an empty array"),
        (TONE.reshape(2, -1), r"got an array of shape \(2, 8000\)"),
        (TONE.astype(np.float16), "got an array of float16"),
        (np.zeros(9, np.int32), "got an array of int32"),
        (TONE * 32_768, "got samples from -16384 to 16384"),
        (torch.zeros(9, dtype=torch.int64), "got a tensor of torch.int64 on cpu"),
        (torch.zeros(9, device="meta"), "got a tensor of torch.float32 on meta"),
        ([0.0, 0.5], "got list"),
        ("talk.wav", r"got str \(samples come decoded\)"),
        ((TONE, RATE, 1), "got a tuple of 3"),
        ((TONE, 16_000.0), "got a sampling rate that is a float"),
        ((TONE, True), "got a sampling rate that is a bool"),
        ((TONE, 0), "got a sampling rate of 0 Hz, wanted 1000 to 768000"),
    ],
)
def test_what_is_no_sound_is_named(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=rf"^audios\[3\]: {said}"):
        as_audio(value, 3, RATE)
