"""What a pipeline may be asked for: checked here, by name, before anything is started."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

import msgspec
import torch

from mmlab.errors import TransportError, UsageError, unknown
from mmlab.pipeline.arguments import INT64, switch, whole
from mmlab.pipeline.messages import ARENA, ECHO, TORCH_SHM, EngineConfig, Welcome
from mmlab.pipeline.serializers import INSECURE, check_serializer
from mmlab.staging import MODES, resolve_device
from mmlab.staging.device import cuda_problem
from mmlab.transports import INSECURE as INSECURE_TRANSPORTS
from mmlab.transports import REGISTRY as TRANSPORTS

if TYPE_CHECKING:
    from mmlab.gemma import FrontendModel
    from mmlab.strategies import Payload, Strategy

PAYLOADS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "uint8": torch.uint8}
MAX_INFLIGHT_NBYTES = 1 << 60  # with what is added for headers, ZeroMQ's 64 bits hold it
MAX_THREADS = 1024
MAX_BATCH_ITEMS = 64
MAX_BATCH_NBYTES = 512 << 20  # of received frames; one request alone may have more
TUNE_MALLOC = "MMLAB_TUNE_MALLOC"  # "0" in the environment: as where there is no mallopt
MSGPACK_ONLY = {ARENA: "the arena", TORCH_SHM: "torch-shm"}  # memory for what lies out of band


def with_transport(strategy: Strategy, transport: str | None) -> Strategy:
    """The strategy over another transport; None: over its own. UsageError for an unknown name."""
    if transport is None:
        return strategy
    if not isinstance(transport, str) or transport not in TRANSPORTS:
        raise unknown("transport", transport, TRANSPORTS)
    insecure = transport in INSECURE_TRANSPORTS or strategy.serializer in INSECURE
    return dataclasses.replace(strategy, transport=transport, insecure=insecure)


def engine_config(
    model: str,
    strategy: Strategy,
    *,
    insecure_pickle: bool,
    device: str | torch.device,
    max_inflight_nbytes: int,
    engine_threads: int | None,
    seed: int,
) -> EngineConfig:
    """The engine's settings; UsageError for what cannot work, TransportError on another system."""
    if not isinstance(model, str):
        raise UsageError(f"model: got {model!r}, wanted the name of one, or a path")
    if not isinstance(device, str | torch.device):
        got = f"{device!r} ({type(device).__qualname__})"
        raise UsageError(f"device: got {got}, wanted 'auto', 'cpu', 'cuda' or a torch.device")
    device = str(device)
    switch("insecure_pickle", insecure_pickle)
    max_inflight_nbytes = whole("max_inflight_nbytes", max_inflight_nbytes, 1, MAX_INFLIGHT_NBYTES)
    if engine_threads is not None:
        engine_threads = whole(
            "engine_threads", engine_threads, 1, MAX_THREADS, otherwise=", or None"
        )
    seed = whole("seed", seed, -INT64, INT64 - 1)
    if sys.platform != "linux":
        raise TransportError(
            f"a pipeline needs Linux (pidfd, sockets of whole messages), not {sys.platform}"
        )
    _check_strategy(strategy, insecure_pickle)
    if strategy.needs_gpu and resolve_device(device).is_host:
        raise UsageError(
            f"strategy {strategy.name!r} needs a GPU, and the engine would run on the CPU: "
            f"{cuda_problem() or f'device is {device!r}'}"
        )
    resolve_device(device)
    return EngineConfig(
        owner_pid=os.getpid(),
        model=model,
        device=device,
        seed=seed,
        serializer=strategy.serializer,
        insecure_pickle=insecure_pickle,
        transport=strategy.transport,
        staging=strategy.staging,
        directory="",
        threads=engine_threads,
        max_nbytes=max_inflight_nbytes,
        max_batch_items=MAX_BATCH_ITEMS,
        max_batch_nbytes=MAX_BATCH_NBYTES,
        tune_malloc=os.environ.get(TUNE_MALLOC) != "0",
        strategy=strategy,
    )


def attached_config(
    welcome: Welcome, insecure_pickle: bool, max_inflight_nbytes: int
) -> EngineConfig:
    """The settings of a frontend that attaches: the engine's, with a budget of its own."""
    config = welcome.config
    if config.transport == TORCH_SHM:
        raise UsageError(
            "transport 'torch-shm' has one frontend, the one that started the engine; to attach "
            "more, start it with another transport"
        )
    switch("insecure_pickle", insecure_pickle)
    max_inflight_nbytes = whole("max_inflight_nbytes", max_inflight_nbytes, 1, MAX_INFLIGHT_NBYTES)
    check_serializer(
        config.serializer, insecure_pickle=insecure_pickle, private=config.transport != "tcp"
    )
    return msgspec.structs.replace(
        config, insecure_pickle=insecure_pickle, max_nbytes=max_inflight_nbytes
    )


def _check_strategy(strategy: Strategy, insecure_pickle: bool) -> None:
    """A strategy of the user's own may combine what does not exist or does not go together."""
    where = f"strategy {strategy.name!r}"
    if strategy.transport not in TRANSPORTS:
        raise unknown("transport", strategy.transport, TRANSPORTS)
    if strategy.staging not in MODES:
        raise unknown("staging mode", strategy.staging, MODES)
    if strategy.transport == "inproc":
        raise UsageError(f"{where}: inproc does not reach another process; use ipc")
    if not isinstance(strategy.payload, str) or strategy.payload not in PAYLOADS:
        raise unknown("payload", strategy.payload, PAYLOADS)
    if strategy.reduce != "deferred":
        raise UsageError(f"{where}: reduce is {strategy.reduce!r}, the pipeline does 'deferred'")
    only = MSGPACK_ONLY.get(strategy.transport)
    if only is not None and strategy.serializer != "msgpack":
        raise UsageError(
            f"{where}: serializer is {strategy.serializer!r}, {only} goes with 'msgpack'"
        )
    if strategy.transport in INSECURE_TRANSPORTS and not insecure_pickle:
        raise UsageError(
            f"transport {strategy.transport!r} runs code that arrives in a message: it starts only "
            "with insecure_pickle=True"
        )
    check_serializer(
        strategy.serializer,
        insecure_pickle=insecure_pickle,
        private=strategy.transport != "tcp",
    )


def is_preset(model: str) -> bool:
    """Whether the name is known to be good without loading anything."""
    from mmlab.gemma.presets import PRESETS

    return model == ECHO or model in PRESETS


def load_frontend(model: str, payload: Payload = "float32") -> FrontendModel | None:
    """Processor and tokenizer; None for echo, which has neither. UsageError for an unknown name, or
    for a processor whose result cannot be sent as `payload`."""
    if model == ECHO:
        return None
    from mmlab.gemma import load_frontend as load

    frontend = load(model)
    frontend.check_payload(PAYLOADS[payload])
    return frontend
