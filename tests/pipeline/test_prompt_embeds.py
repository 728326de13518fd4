"""Embeddings of a caller's own: what is wrong is refused in the frontend, what is right counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from mmlab import Pipeline, UsageError

HIDDEN = 128  # of gemma3-tiny


@pytest.fixture(scope="module", params=["msgpack", "arena"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    with Pipeline("gemma3-tiny", request.param, max_inflight_nbytes=64 << 20) as pipe:
        yield pipe


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def far_sparse() -> torch.Tensor:
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        return torch.sparse_coo_tensor(
            torch.tensor([[2**40], [0]]), torch.ones(1), (10, HIDDEN), check_invariants=False
        )


WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("", lambda: torch.zeros(10, 2 * HIDDEN), r"got shape \(10, 256\), wanted a dense tensor"),
    ("", lambda: torch.zeros(2, 10, HIDDEN), r"got shape \(2, 10, 128\)"),
    ("", lambda: torch.zeros(0, HIDDEN), r"got shape \(0, 128\)"),
    ("", lambda: rows(10).double(), "got torch.float64, wanted .*float32, bfloat16 or float16"),
    ("", lambda: rows(10).int(), "got torch.int32"),
    ("<embed>" * 10, lambda: rows(9), "got 9 rows for 10 placeholders in the prompt"),
    ("<embed>" * 9, lambda: rows(10), "got 10 rows for 9 placeholders"),
    ("<embed>", lambda: None, "got none for 1 '<embed>' in the prompt"),
    ("", far_sparse, "got a torch.sparse_coo tensor"),
    ("", lambda: [[0.0] * HIDDEN], "got a list, wanted a dense tensor"),
    ("", lambda: torch.zeros(10, HIDDEN, device="meta"), "got a tensor on meta"),
    (
        "",
        lambda: rows(10).index_fill(0, torch.tensor([3]), float("nan")),
        "got nan at row 3, column 0, wanted finite numbers",
    ),
]


@pytest.mark.parametrize(("prompt", "make", "match"), WRONG, ids=[m for *_, m in WRONG])
def test_what_does_not_fit_is_refused_before_a_frame_is_sent(
    pipe: Pipeline, prompt: str, make: Callable[[], object], match: str
) -> None:
    before = pipe.stats()
    with pytest.raises(ValueError, match="prompt_embeds: " + match) as refused:
        pipe.generate(prompt, prompt_embeds=make())  # type: ignore[arg-type]
    assert isinstance(refused.value, UsageError)
    after = pipe.stats()
    assert (after["requests_inflight"], after["nbytes_inflight"]) == (0, 0)
    assert after["engine_rejected"] == before["engine_rejected"]


def test_good_rows_count_and_their_place_too(pipe: Pipeline) -> None:
    before = pipe.generate("Hi", prompt_embeds=rows(10), max_new_tokens=6)
    assert before.payload_nbytes == 10 * HIDDEN * 4
    assert pipe.generate("Hi", prompt_embeds=rows(10), max_new_tokens=6).token_ids == (
        before.token_ids
    )
    placed = pipe.generate("<embed>" * 10 + "Hi", prompt_embeds=rows(10), max_new_tokens=6)
    assert placed.token_ids == before.token_ids
    others = {
        tuple(before.token_ids),
        tuple(pipe.generate("Hi", max_new_tokens=6).token_ids),
        tuple(pipe.generate("Hi", prompt_embeds=rows(10, 1), max_new_tokens=6).token_ids),
        tuple(
            pipe.generate(
                "H" + "<embed>" * 10 + "i", prompt_embeds=rows(10), max_new_tokens=6
            ).token_ids
        ),
    }
    assert len(others) >= 3


def test_the_models_own_embeddings_are_answered_as_the_tokens_are(pipe: Pipeline) -> None:
    """Rows of the model's table in place of a prompt's tokens change nothing."""
    from mmlab.gemma import load_engine, load_frontend

    ids = load_frontend("gemma3-tiny").tokenize("Hello")
    table = load_engine("gemma3-tiny", "cpu").module.get_input_embeddings()
    with torch.inference_mode():
        mine = table(torch.tensor(ids[1:]))
    wanted = pipe.generate("Hello", max_new_tokens=6)
    got = pipe.generate("", prompt_embeds=mine.clone(), max_new_tokens=6)
    assert got.token_ids == wanted.token_ids


def test_requests_with_rows_of_different_number_share_a_batch(pipe: Pipeline) -> None:
    alone = [
        pipe.generate("Hi", prompt_embeds=rows(n, n), max_new_tokens=4).token_ids
        for n in (3, 7, 7, 40)
    ]
    futures = [pipe.submit("Hi", prompt_embeds=rows(n, n), max_new_tokens=4) for n in (3, 7, 7, 40)]
    assert [future.result(30).token_ids for future in futures] == alone


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_sent_as_they_are(pipe: Pipeline, dtype: torch.dtype) -> None:
    reply = pipe.generate("Hi", prompt_embeds=rows(10).to(dtype), max_new_tokens=2)
    assert reply.payload_nbytes == 10 * HIDDEN * 2


@pytest.mark.parametrize("name", ["videos", "audios"])
def test_a_modality_that_the_model_does_not_take_is_refused_by_name(
    pipe: Pipeline, name: str
) -> None:
    with pytest.raises(UsageError, match=f"{name}: model 'gemma3-tiny' takes none, it takes image"):
        pipe.generate("Hi", **{name: [object()]})  # type: ignore[arg-type]
