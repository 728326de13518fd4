"""From decoded requests to answers: stage together, check, encode, generate one by one.

Requests are staged together because only the engine knows the batch. Everything after that is done
for each request alone: a bad one fails alone, and an answer does not depend on its neighbours.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from mmlab.errors import BatchError
from mmlab.fields import Entry
from mmlab.pipeline.checksum import Hasher
from mmlab.pipeline.messages import EngineReply, ErrorReply, Request
from mmlab.pipeline.padding import wasteful
from mmlab.pipeline.share import Share, shares
from mmlab.pixels import Step
from mmlab.staging import PinnedBatcher

TRACE_CHARS = 4000  # how much of a traceback goes into an error reply

log = logging.getLogger("mmlab.engine")


class Generation(Protocol):
    """What a model says about an answer."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def prefill_s(self) -> float: ...
    @property
    def decode_s(self) -> float: ...


class Model(Protocol):
    """A model on its device."""

    def encode(
        self, modality: str, kwargs: Mapping[str, object], steps: Sequence[Step] | None
    ) -> torch.Tensor:
        """Staged items of one request, and what normalizes them if raw -> (tokens, hidden)."""

    def generate(
        self,
        token_ids: Sequence[int],
        features: Mapping[str, torch.Tensor] | None,
        max_new_tokens: int,
    ) -> Generation:
        """Greedy answer to one prompt."""


@dataclass(slots=True)
class Work:
    """A request on its way through the engine."""

    request_id: int
    request: Request
    received_ns: int
    nbytes: int  # of its frames
    timings: dict[str, float]
    shares: list[Share] = field(default_factory=list)  # of the staged batches; until encoded
    features: dict[str, torch.Tensor] | None = None  # by modality
    checksum: int = 0
    pinned: bool = False
    error: ErrorReply | None = None

    @property
    def num_items(self) -> int:
        return 0 if self.request.mm is None else sum(map(len, self.request.mm.values()))


Finish = Callable[[Work, EngineReply | ErrorReply], None]


class Worker:
    """Serves batches of requests; `model` None (echo) only stages and checks them."""

    def __init__(self, batcher: PinnedBatcher, model: Model | None) -> None:
        self._batcher = batcher
        self._model = model
        self.device = batcher.device

    def serve(self, batch: list[Work], wanted: Callable[[Work], bool], finish: Finish) -> None:
        """Calls `finish` once for each request that is `wanted` before each of its long steps."""
        begun_ns = time.monotonic_ns()
        for work in batch:
            work.timings["queue"] = (begun_ns - work.received_ns) / 1e9 - work.timings["decode"]
        self._stage(batch)
        for work in batch:
            if work.error is None and work.shares and wanted(work):
                with _failing_alone(work, "encoder"), self._clock(work, "encoder"):
                    work.features = self._encode(work)
            work.shares.clear()  # staging memory and frames go back before the text model starts
        for work in batch:
            if wanted(work):
                finish(work, self._answer(work, len(batch)))
            work.features = None

    def _stage(self, batch: list[Work]) -> None:
        try:
            self._stage_together(batch)
        except Exception as error:
            if len(batch) > 1:
                log.info("%d requests cannot be staged together: %s", len(batch), error)
                for work in batch:
                    self._stage([work])
            else:
                batch[0].error = error_reply("reduce", error)
        for work in batch:
            work.request.mm = None

    def _stage_together(self, batch: list[Work]) -> None:
        pairs: list[tuple[str, Entry]] = []
        owners: list[int] = []
        modalities = sorted({name for work in batch for name in work.request.mm or ()})
        for modality in modalities:  # of all requests, so that their items lie side by side
            for owner, work in enumerate(batch):
                if work.request.mm is not None and modality in work.request.mm:
                    pairs += [(modality, item) for item in work.request.mm[modality]]
                    owners += [owner] * (len(pairs) - len(owners))
        if not pairs:
            return
        if len(batch) > 1 and wasteful(pairs, max(work.nbytes for work in batch)):
            raise BatchError("their batch would be mostly padding")
        staged = self._batcher.stage(pairs)
        found = shares(staged.batches, pairs, owners)
        timings, pinned = staged.timings, staged.pinned  # waits until every copy has arrived
        staged.release()
        self._batcher.settle()  # what the copies have read, an arena's leases among it, goes back
        for work, work.shares in zip(batch, found, strict=False):
            work.pinned = pinned
            work.timings.update(timings)
            with self._clock(work, "checksum"):
                work.checksum = _checksum(work.shares)

    def _encode(self, work: Work) -> dict[str, torch.Tensor] | None:
        if (model := self._model) is None:
            return None
        steps = work.request.steps or {}
        parts: dict[str, list[torch.Tensor]] = {}
        for share in work.shares:
            found = model.encode(share.modality, share.kwargs, steps.get(share.modality))
            parts.setdefault(share.modality, []).append(found)
        return {name: p[0] if len(p) == 1 else torch.cat(p) for name, p in parts.items()}

    def _answer(self, work: Work, batch_requests: int) -> EngineReply | ErrorReply:
        token_ids: list[int] = []
        if work.error is None and self._model is not None:
            with _failing_alone(work, "prefill"):
                request = work.request
                answer = self._model.generate(
                    request.token_ids, work.features, request.max_new_tokens
                )
                token_ids = answer.token_ids
                work.timings.update(prefill=answer.prefill_s, decode_tokens=answer.decode_s)
        if work.error is not None:
            return work.error
        return EngineReply(
            token_ids=token_ids,
            checksum=work.checksum or _checksum([]),
            received_ns=work.received_ns,
            timings=work.timings,
            device=str(self.device),
            pinned=work.pinned,
            batch_requests=batch_requests,
            rejected=0,
        )

    @contextlib.contextmanager
    def _clock(self, work: Work, stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        work.timings[stage] = time.perf_counter() - begun


def error_reply(stage: str, error: BaseException) -> ErrorReply:
    """What the caller is told about an exception."""
    trace = "".join(traceback.format_exception(error))[-TRACE_CHARS:]
    message = str(error)[:TRACE_CHARS]
    return ErrorReply(stage, type(error).__name__, as_utf8(message), as_utf8(trace), 0)


def as_utf8(text: str) -> str:
    """The text without what cannot be sent (lone surrogates, from file names or hostile input)."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def _failing_alone(work: Work, stage: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        work.error = error_reply(stage, error)


def _checksum(shares: Sequence[Share]) -> int:
    hasher = Hasher()
    for share in shares:
        for item in share.items():
            hasher.add(share.modality, item)
    return hasher.value()
