"""How a trial sends one request: through the real processor, or for `echo` as tensors of its own.

Every call makes a fresh payload, so that no cache and no warm page of an earlier request can make
a later one look fast.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from mmlab.bench.checks import DeliveryError
from mmlab.bench.media import Media
from mmlab.bench.media.tensors import items_of
from mmlab.bench.spec import ECHO, TrialSpec
from mmlab.pipeline import Pipeline, Reply
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.settings import PAYLOADS

_ECHO_TOKENS = [1, 2, 3]  # an echo engine carries them and gives them no meaning


class Submit(Protocol):
    """Starts one request; call it once."""

    def __call__(self, max_new_tokens: int) -> Future[Reply]: ...


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to go. `checksum`: what must arrive, where the sender knows it."""

    submit: Submit
    checksum: int | None = None


class Sender(Protocol):
    """Makes requests of a prompt and media; `prepare` is outside, `submit` inside the clock."""

    def prepare(self, prompt: str, media: Media) -> Prepared: ...


class ProcessorSender:
    """The pipeline runs the model's processor within `submit`, as a serving frontend does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def prepare(self, prompt: str, media: Media) -> Prepared:
        """Nothing to do ahead: the processor belongs to the request's time."""

        def submit(max_new_tokens: int) -> Future[Reply]:
            return self._pipeline.submit(
                prompt,
                images=media.images,
                videos=media.videos,
                audios=media.audios,
                max_new_tokens=max_new_tokens,
            )

        return Prepared(submit)


class TensorSender:
    """Tensors made ahead of the clock and sent as they are: delivery and nothing else."""

    def __init__(self, pipeline: Pipeline, size: int) -> None:
        self._pipeline = pipeline
        self._size = size

    def prepare(self, prompt: str, media: Media) -> Prepared:
        """The items of `media.tensors`, and the checksum that must come back."""
        payload = PAYLOADS[self._pipeline.strategy.payload]
        items = items_of(media, self._size, payload)
        checksum = checksum_items(items)

        def submit(max_new_tokens: int) -> Future[Reply]:
            return self._pipeline.submit_items(items, _ECHO_TOKENS, max_new_tokens=max_new_tokens)

        return Prepared(submit, checksum)


def make_sender(spec: TrialSpec, pipeline: Pipeline) -> Sender:
    """The sender that fits the model."""
    if spec.model == ECHO:
        return TensorSender(pipeline, spec.image_size)
    return ProcessorSender(pipeline)


def answer(spec: TrialSpec, prepared: Prepared) -> Reply:
    """Sends one request and waits for its reply; DeliveryError where other bytes arrived."""
    reply = prepared.submit(spec.max_new_tokens).result(timeout=spec.reply_timeout_s)
    check_arrival(prepared, reply)
    return reply


def check_arrival(prepared: Prepared, reply: Reply) -> None:
    """DeliveryError where the sender knows the checksum and the engine saw another."""
    if prepared.checksum is not None and reply.checksum != prepared.checksum:
        raise DeliveryError(
            f"request {reply.request_id}: the batch at the device has checksum "
            f"{reply.checksum:#018x}, what was sent has {prepared.checksum:#018x}"
        )
