"""Images, videos and sound of Gemma 4 on their whole way: each request gets its own answer."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from arena_pipeline_parts import is_empty

from mmlab.pipeline import Pipeline


def sound(seconds: float) -> np.ndarray:
    at = np.arange(int(16_000 * seconds)) / 16_000
    return (0.3 * np.sin(2 * np.pi * (200 + 100 * at) * at)).astype(np.float32)


@pytest.mark.timeout(240)  # imports of transformers, on a machine that may be busy
def test_every_modality_answers_the_same_over_a_socket_and_in_the_arena() -> None:
    random = np.random.default_rng(5)
    blocks = random.integers(0, 256, (2, 6, 8, 3), dtype=np.uint8)
    pictures = [np.repeat(np.repeat(block, 20 + n, 0), 20, 1) for n, block in enumerate(blocks)]
    video = np.stack([np.roll(pictures[0], shift, 1) for shift in range(4)])
    requests = [
        {"images": pictures},
        {"videos": [video]},
        {"audios": [sound(2.0)]},
        {"audios": [sound(0.7)]},
        {"images": pictures[1:], "videos": [video], "audios": [sound(1.0)]},
        {},
    ]
    answers = {}
    for strategy in ("msgpack", "arena"):
        with Pipeline(
            "gemma4-tiny", strategy, engine_threads=1, max_inflight_nbytes=128 << 20
        ) as pipe:
            alone = [pipe.generate("What?", max_new_tokens=3, **given) for given in requests]  # type: ignore[arg-type]
            futures = [pipe.submit("What?", max_new_tokens=3, **given) for given in requests]  # type: ignore[arg-type]
            together = [future.result(60) for future in futures]
            for one, other in zip(alone, together, strict=True):
                assert (one.token_ids, one.checksum) == (other.token_ids, other.checksum)
            if strategy == "arena":
                assert pipe.stats()["arena_copied_nbytes"] < 64 << 10  # masks and the like
                assert is_empty(pipe)
            answers[strategy] = [(reply.token_ids, reply.checksum) for reply in alone]
    assert answers["msgpack"] == answers["arena"]
    assert len({tuple(token_ids) for token_ids, _ in answers["arena"]}) >= 5
