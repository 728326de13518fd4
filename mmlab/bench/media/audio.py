"""Recordings by seed: a chirp with its harmonics in noise, float32 mono at 16 kHz.

White noise would do for counting bytes, but an audio encoder should hear something that changes:
a tone that glides, swells, and has a voice's overtones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 16_000
Samples = npt.NDArray[np.float32]  # (n,) in -1 .. 1, mono at 16 kHz


def synthesize(generator: np.random.Generator, seconds: float) -> Samples:
    """A recording of its own; the state of the generator says which."""
    time = np.arange(max(1, round(seconds * SAMPLE_RATE))) / SAMPLE_RATE
    first, last = generator.uniform(80, 400), generator.uniform(200, 1600)  # Hz
    turns = first * time + (last - first) * time**2 / (2 * max(seconds, 1e-3))
    sound = np.zeros_like(time)
    for harmonic in range(1, 5):  # 6.4 kHz at most, below half the rate
        weight = generator.uniform(0.3, 1.0) / harmonic
        sound += weight * np.sin(2 * np.pi * (harmonic * turns + generator.uniform()))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * (generator.uniform(0.5, 4) * time + generator.uniform()))
    sound = sound * swell + generator.uniform(0.01, 0.1) * generator.standard_normal(len(time))
    loudness = generator.uniform(0.5, 0.95) / np.abs(sound).max()
    samples: Samples = (sound * loudness).astype(np.float32)
    return samples


def cut(generator: np.random.Generator, recording: Samples, seconds: float) -> Samples:
    """A random stretch of a recording, which begins again where it is too short, and its loudness
    changed a little, so that two stretches of it differ."""
    length = max(1, round(seconds * SAMPLE_RATE))
    room = max(1, len(recording) - length + 1) if len(recording) >= length else len(recording)
    start = int(generator.integers(0, room))
    places = (start + np.arange(length)) % len(recording)
    stretch: Samples = recording[places] * np.float32(generator.uniform(0.5, 1.0))
    return stretch
