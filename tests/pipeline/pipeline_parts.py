"""Shared by the tests of the pipeline: items, frontends as scripts, an engine inside the test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mmlab import EngineError, KwargsItems, batched
from mmlab.pipeline import Pipeline
from mmlab.pipeline.engine import Engine
from mmlab.pipeline.messages import (
    COUNTER_BITS,
    EngineConfig,
    EngineReply,
    ErrorReply,
    Kind,
    Request,
    frontend_of,
)
from mmlab.pipeline.serializers import make_serializer
from mmlab.pipeline.worker import Model, Worker
from mmlab.pixels import Step
from mmlab.staging import PinnedBatcher
from mmlab.transports import Transport, open_transport
from mmlab.transports.base import ReplyReceiver, RequestSender
from mmlab.wire import Decoder, Encoder, read_envelope

ROOT = Path(__file__).parents[2]
ME = 1 << COUNTER_BITS


def images(count: int, value: float = 0.0, shape: tuple[int, ...] = (3, 8, 8)) -> KwargsItems:
    """`count` items with pixel_values full of `value`, `value` + 1, ..."""
    first = torch.arange(count, dtype=torch.float32) + value
    pixels = first.reshape(-1, *(1 for _ in shape)).expand(count, *shape).contiguous()
    return KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(met)


def socket_directory(pipeline: Pipeline) -> Path:
    """Where its sockets lie."""
    return Path(pipeline.info.requests_endpoint.removeprefix("ipc://")).parent


def script(
    code: str,
    *arguments: str,
    how: str = "-c",
    cwd: str | None = None,
    session: str = "",
    stdin: int = subprocess.DEVNULL,
    **env: str,
) -> subprocess.Popen[str]:
    """A frontend process that runs `code` (a file's path with how="file"); pipes for its output."""
    command = [code] if how == "file" else [how, code]
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=bool(session),
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
    )


def engine_config(**changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "owner_pid": os.getpid(),
        "model": "echo",
        "device": "cpu",
        "seed": 0,
        "serializer": "msgpack",
        "insecure_pickle": False,
        "transport": "inproc",
        "staging": "pageable",
        "directory": "",
        "threads": None,
        "max_nbytes": 1 << 30,
        "max_batch_items": 64,
        "max_batch_nbytes": 1 << 28,
    }
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


@dataclass
class Answer:
    token_ids: list[int]
    prefill_s: float = 0.25
    decode_s: float = 0.5


@dataclass
class FakeModel:
    """Counts what it gets; images whose first value is negative make its encoder fail."""

    encoded: list[torch.Tensor] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def encode(
        self, modality: str, kwargs: Mapping[str, object], steps: Sequence[Step] | None
    ) -> torch.Tensor:
        found = kwargs.get("pixel_values")
        if modality != "image" or found is None:
            raise EngineError(f"{modality} items with keys {sorted(kwargs)}: takes image items")
        if isinstance(found, list):  # of different sizes
            return torch.cat([self.encode_images(image[None]) for image in found])
        assert isinstance(found, torch.Tensor)
        return self.encode_images(found)

    def encode_images(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if pixel_values.reshape(-1)[0] < 0:
            raise RuntimeError("negative image")
        self.encoded.append(pixel_values.clone())
        return pixel_values.flatten(1)[:, :2]

    def generate(
        self,
        token_ids: Sequence[int],
        features: Mapping[str, torch.Tensor] | None,
        max_new_tokens: int,
    ) -> Answer:
        self.entered.set()
        self.gate.wait(10)
        if token_ids[:1] == [666]:
            raise ValueError("bad prompt \udcff")
        seen = 0 if not features else int(features["image"].sum())
        return Answer([*token_ids, seen][:max_new_tokens])


@dataclass
class EngineHere:
    """An engine in a thread of the test, and the links to it."""

    engine: Engine
    transport: Transport
    sender: RequestSender
    receiver: ReplyReceiver
    _serial: int = ME

    def send(self, items: KwargsItems | None, token_ids: Sequence[int] = (1,)) -> int:
        self._serial += 1
        request = Request(list(token_ids), 100, items)
        frames = Encoder().encode(request, kind=Kind.REQUEST, request_id=self._serial)
        self.sender.send(frames)
        return self._serial

    def say(self, kind: int, request_id: int = ME) -> None:
        self.sender.send(Encoder().encode(None, kind=kind, request_id=request_id))

    def receive(self, timeout: float = 5.0) -> tuple[int, Kind, EngineReply | ErrorReply | None]:
        message = self.receiver.receive(timeout)
        assert message is not None, "no reply"
        envelope = read_envelope(message.frames[0])
        kind = Kind(envelope.kind)
        types = {Kind.REPLY: EngineReply, Kind.ERROR: ErrorReply}
        body = Decoder(types[kind]).decode(message.frames) if kind in types else None
        assert body is None or isinstance(body, EngineReply | ErrorReply)
        return envelope.request_id, kind, body


@contextmanager
def engine_here(model: Model | None = None, **changes: object) -> Iterator[EngineHere]:
    """A running engine over inproc; stopped and joined at the end."""
    config = engine_config(**changes)
    serializer = make_serializer("msgpack", insecure_pickle=False, private=True, max_nbytes=1 << 30)
    with open_transport("inproc") as transport, PinnedBatcher("cpu", mode="pageable") as batcher:
        requests, replies = transport.bind_requests(None), transport.bind_replies(None)
        engine = Engine(config, requests, replies, serializer, Worker(batcher, model))
        sender = transport.connect_requests(requests.endpoint)
        receiver = transport.connect_replies(replies.endpoint, frontend_of(ME))
        thread = threading.Thread(target=engine.run)
        thread.start()
        try:
            yield EngineHere(engine, transport, sender, receiver)
        finally:
            if isinstance(model, FakeModel):
                model.gate.set()
            engine.stop()
            thread.join(10)
            assert not thread.is_alive()
