"""What a caller may pass: taken as meant, or refused by name before anything happens."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pipeline_parts import images

from mmlab import BatchError, UsageError
from mmlab.pipeline import Pipeline, client, directory
from mmlab.pipeline.arguments import token_list, wait_seconds
from mmlab.pipeline.settings import engine_config
from mmlab.strategies import resolve

BAD_SETTINGS: dict[str, list[object]] = {
    "device": [None, 3],
    "max_inflight_nbytes": [1.5, True, "1", None, 0, 2**70],
    "engine_threads": [1.5, "2", 0, True, 10**6],
    "seed": ["x", None, 1.5, 2**70],
    "insecure_pickle": ["yes", 1, None],
    "start_timeout": [None, "x", math.inf, math.nan, 1e18, 0, -1, True],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, bad in BAD_SETTINGS.items() for value in bad]
)
def test_a_bad_setting_is_named_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(client, "Link", never)
    with pytest.raises(UsageError, match=rf"{name}: got .*, wanted "):
        Pipeline(model="echo", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_a_torch_device_is_taken_by_its_name(device: str | torch.device) -> None:
    config = engine_config(
        "echo",
        resolve("msgpack"),
        insecure_pickle=False,
        device=device,
        max_inflight_nbytes=int(np.int64(5)),
        engine_threads=None,
        seed=0,
    )
    assert config.device == "cpu"


@pytest.mark.parametrize("items", [{"image": []}, [1], "items", torch.zeros(1)])
def test_what_are_no_items_is_a_batch_error(echo: Pipeline, items: object) -> None:
    with pytest.raises(BatchError, match=r"items: got .*, wanted KwargsItems"):
        echo.submit_items(items)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [
        ["a"],
        [1.5],
        [True],
        [2**70],
        "abc",
        b"abc",
        None,
        7,
        {1, 2},
        torch.zeros(2),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.tensor(3),
        np.zeros(2),
        np.array(["a"]),
        np.array([True]),
    ],
    ids=str,
)
def test_what_are_no_token_ids_is_refused_in_the_caller(echo: Pipeline, ids: object) -> None:
    with pytest.raises(UsageError, match=r"token_ids.*: got .*, wanted .*whole number"):
        echo.submit_items(images(1), ids)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        (1, 2),
        range(1, 3),
        torch.tensor([1, 2]),
        torch.tensor([1, 2], dtype=torch.uint8),
        np.array([1, 2], np.int32),
        [np.int64(1), np.uint8(2)],
    ],
    ids=repr,
)
def test_token_ids_may_come_in_a_tensor_or_an_array(echo: Pipeline, ids: object) -> None:
    taken = token_list(ids)
    assert taken == [1, 2] and {type(number) for number in taken} == {int}
    assert echo.submit_items(None, ids).result(5).checksum  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, -1, 1.5, "8", None, True, 2**40])
def test_max_new_tokens_is_checked_in_the_caller(echo: Pipeline, number: object) -> None:
    with pytest.raises(UsageError, match=r"max_new_tokens: got .*, wanted a whole number from 1"):
        echo.submit_items(None, max_new_tokens=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["x", math.nan, True, [1]])
def test_a_timeout_that_is_none_is_refused(echo: Pipeline, timeout: object) -> None:
    with pytest.raises(UsageError, match=r"timeout: got .*, wanted seconds"):
        echo.submit_items(None, timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"timeout: got .*, wanted seconds"):
        echo.generate("prompt", timeout=timeout)  # type: ignore[arg-type]


def test_very_long_timeouts_are_waits_without_end(echo: Pipeline) -> None:
    assert [wait_seconds("timeout", t) for t in (math.inf, 1e18, 10**400, None)] == [None] * 4
    assert wait_seconds("timeout", np.float32(5)) == 5.0
    for timeout in (math.inf, 1e18, np.float32(5), 5):
        assert echo.submit_items(None, timeout=timeout).result(5).checksum  # type: ignore[arg-type]


def test_without_a_temporary_directory_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert directory._bases() == [Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    made = directory.PrivateDirectory()
    made.close()
    assert not made.path.exists() and not leftovers("fds")


def test_a_callbacks_thread_is_documented() -> None:
    assert "must not wait for another reply" in (Pipeline.submit.__doc__ or "")
