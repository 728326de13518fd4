"""Which requests a workload sends, whole and scaled."""

from __future__ import annotations

from collections import Counter

import pytest

from mmlab.bench import workloads
from mmlab.errors import UsageError


@pytest.mark.parametrize(
    ("scale", "counts"),
    [
        (1.0, {4: 8, 8: 4, 16: 2, 32: 1}),
        (0.25, {1: 8, 2: 4, 4: 2, 8: 1}),
        (0.125, {1: 12, 2: 2, 4: 1}),  # half an image is one
        (0.001, {1: 15}),
    ],
)
def test_scale_shrinks_the_images_and_keeps_the_prompts(
    scale: float, counts: dict[int, int]
) -> None:
    requests = workloads.get("doc-mix").requests(scale)
    assert Counter(request.num_images for request in requests) == counts
    assert len({request.prompt for request in requests}) == 15
    assert {r.case for r in requests} == {f"{n} image{'s' * (n > 1)}" for n in counts}
    assert workloads.largest(requests).num_images == max(counts)


def test_doc_mix_is_the_published_one() -> None:
    assert sum(r.num_images for r in workloads.get("doc-mix").requests()) == 128


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(UsageError, match="scale must be above 0 and at most 1"):
        workloads.get("single").requests(scale)


def test_an_unknown_workload_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown workload 'docmix': did you mean 'doc-mix'") as e:
        workloads.get("docmix")
    assert "single, multi" in str(e.value)
