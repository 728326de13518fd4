"""The frontend's side: `Pipeline` submits requests to its engine and hands out futures.

`submit` runs in the caller's thread, from the processor to the socket; replies are taken by one
thread. Whatever can be refused is refused before a frame is sent, and before anything is started.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mmlab.errors import UsageError
from mmlab.fields import KwargsItems
from mmlab.pipeline.arguments import (
    MAX_NEW_TOKENS,
    TokenIds,
    start_seconds,
    token_list,
    wait_seconds,
    whole,
)
from mmlab.pipeline.aside import aside
from mmlab.pipeline.asking import Asking
from mmlab.pipeline.attached import ask, check_address
from mmlab.pipeline.link import Link
from mmlab.pipeline.making import Inputs, Room, check_items, no_text, request_of
from mmlab.pipeline.messages import (
    ECHO,
    EngineConfig,
    Ready,
    Reply,
    Request,
    Welcome,
    payload_nbytes,
)
from mmlab.pipeline.settings import (
    attached_config,
    engine_config,
    is_preset,
    load_frontend,
    with_transport,
)
from mmlab.transports.limits import naming_the_limit

if TYPE_CHECKING:
    import torch

    from mmlab.arena import Arena
    from mmlab.gemma import Image
    from mmlab.strategies import Payload, Strategy


class Pipeline(Asking):
    """A frontend with an engine of its own: prompts and images in, replies out.

    `strategy`: a name of `mmlab.strategies()`. In place of its own: `transport`, one of
    `mmlab.transports.REGISTRY`, and `payload`, "float32", "bfloat16" or "uint8" pixel values (those
    the engine normalizes). `max_inflight_nbytes`: payload bytes of all requests under way.
    `engine_threads`: torch threads of the engine, None for torch's default. Raises UsageError
    before anything is started, EngineError where the engine does not get ready. A context manager:
    leaving it ends the engine and what is still under way.
    """

    def __init__(
        self,
        model: str = "gemma3-tiny",
        strategy: str | Strategy = "msgpack",
        *,
        transport: str | None = None,
        payload: Payload | None = None,
        insecure_pickle: bool = False,
        device: str | torch.device = "auto",
        max_inflight_nbytes: int = 1 << 30,
        start_timeout: float = 120.0,
        engine_threads: int | None = None,
        seed: int = 0,
    ) -> None:
        from mmlab.strategies import resolve  # below this module in the order of imports

        self.strategy = with_transport(resolve(strategy, payload), transport)
        self.model = model
        config = engine_config(
            model,
            self.strategy,
            insecure_pickle=insecure_pickle,
            device=device,
            max_inflight_nbytes=max_inflight_nbytes,
            engine_threads=engine_threads,
            seed=seed,
        )
        self._open(config, start_seconds("start_timeout", start_timeout))

    @classmethod
    def attach(
        cls,
        address: str,
        *,
        insecure_pickle: bool = False,
        max_inflight_nbytes: int = 1 << 30,
        start_timeout: float = 30.0,
    ) -> Self:
        """A further frontend of the engine that another pipeline has started: at its `address`,
        from this or another process of the same user. Model and strategy are the engine's.

        It has a budget of its own (one request may have what the engine's owner may send), and its
        own arena where the strategy has one. Closing it ends this link only; when the owner closes
        or dies the engine ends, and what is open here gets EngineError.

        UsageError for what is no address; TransportError where no engine answers there within
        `start_timeout` seconds, or refuses. A strategy that pickles needs `insecure_pickle` again.
        """
        seconds = start_seconds("start_timeout", start_timeout)
        join = functools.partial(cls._join, address, insecure_pickle, max_inflight_nbytes, seconds)
        return aside(join, cls.close)

    @classmethod
    def _join(
        cls, address: str, insecure_pickle: bool, max_inflight_nbytes: int, seconds: float
    ) -> Self:
        deadline = time.monotonic() + seconds
        with naming_the_limit("attaching to an engine"):
            welcome = ask(check_address(address), deadline)
        config = attached_config(welcome, insecure_pickle, max_inflight_nbytes)
        pipeline = cls.__new__(cls)
        assert config.strategy is not None  # every pipeline tells its engine
        pipeline.strategy, pipeline.model = config.strategy, config.model
        pipeline._open(config, max(0.0, deadline - time.monotonic()), welcome)
        return pipeline

    def _open(
        self, config: EngineConfig, start_timeout: float, welcome: Welcome | None = None
    ) -> None:
        model, payload = config.model, self.strategy.payload
        # A preset's name is known to be good, so that its two halves can load side by side.
        preset = is_preset(model)
        frontend = None if preset else load_frontend(model, payload)
        with naming_the_limit("start of a pipeline"):
            self._link = Link(config, start_timeout, welcome)
            # Also when it is forgotten, and at interpreter exit.
            self._closer = weakref.finalize(self, Link.close, self._link)
            try:
                self._frontend = load_frontend(model, payload) if preset else frontend
                decode = self._frontend.decode if self._frontend is not None else no_text
                self._info = self._link.connect(decode)
            except BaseException:
                self.close()
                raise

    @property
    def info(self) -> Ready:
        """What the engine said when it was ready: pid, device, pinned, torch_threads, ..."""
        return self._info

    @property
    def engine_pid(self) -> int:
        return self._link.process.pid

    @property
    def address(self) -> str:
        """Where other frontends can `attach`: a socket that only this user can reach."""
        return self._info.address

    @property
    def engine_output(self) -> str:
        """The last kilobytes of what the engine wrote: warnings, rejected messages. Its owner has
        them; an attached pipeline has nothing."""
        return self._link.process.output()

    @property
    def arena(self) -> Arena | None:
        """The memory that requests go through; None for strategies without it.

        A tensor of `arena.empty(...)` that is sent as an item is not copied any more, and takes
        room until it and all its views are gone.
        """
        return self._link.arena

    def stats(self) -> dict[str, float]:
        """Requests and bytes in flight, submitters waiting, frames that ZeroMQ still reads
        (`frames_unreleased`), replies to no request, messages that the engine rejected; those of
        `ArenaStats` as `arena_size`, `arena_live_nbytes`, ..., and `arena_copied_nbytes`."""
        return self._link.stats()

    def submit(
        self,
        prompt: str,
        *,
        images: Sequence[Image] = (),
        videos: Sequence[object] = (),
        audios: Sequence[object] = (),
        prompt_embeds: torch.Tensor | None = None,
        max_new_tokens: int = 8,
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Process, encode and send one request; thread-safe. The pixels are not copied: what
        `submit` has returned a future for must not be written to before the reply. With an arena
        the processor writes into it, once there is room for all images of the request.

        `images`: PIL images or (h, w, 3) uint8 arrays. `prompt_embeds`: (n, hidden) floats, finite,
        in place of tokens: each `<embed>` in the prompt takes a row, without any they stand before
        its text. `videos` and `audios` for models that take them.

        `timeout`: seconds to wait for room in flight (None: without end, 0: not at all), then
        BackpressureTimeout. UsageError: too large for the budget, or no valid prompt or images.

        A callback of the future (`add_done_callback`) runs in the thread that takes the replies: it
        may submit, but must not wait for another reply, which that thread would have to take.
        """
        if self._frontend is None:
            raise UsageError(f"model {ECHO!r} has no processor: use submit_items()")
        max_new_tokens = whole("max_new_tokens", max_new_tokens, 1, MAX_NEW_TOKENS)
        timeout = wait_seconds("timeout", timeout)
        begun_ns, payload = time.monotonic_ns(), self.strategy.payload
        inputs = Inputs(prompt, images, videos, audios, prompt_embeds)
        made = (self._frontend, inputs, max_new_tokens, payload)
        with self._link.room(timeout) as room:  # no local here refers to its memory, see Room
            return self._submit(*request_of(*made, room), begun_ns, room.left, room)

    def submit_items(
        self,
        items: KwargsItems | None,
        token_ids: TokenIds = (),
        *,
        max_new_tokens: int = 8,
        timeout: float | None = None,
    ) -> Future[Reply]:
        """`submit` for items that are processed already, as transport measurements have them.
        BatchError for what are no items, UsageError for ids that are no whole numbers."""
        begun_ns = time.monotonic_ns()
        check_items(items)
        ids = token_list(token_ids)
        max_new_tokens = whole("max_new_tokens", max_new_tokens, 1, MAX_NEW_TOKENS)
        timeout = wait_seconds("timeout", timeout)
        return self._submit(Request(ids, max_new_tokens, items), {}, begun_ns, timeout)

    def _submit(
        self,
        request: Request,
        timings: dict[str, float],
        begun_ns: int,
        timeout: float | None,
        room: Room | None = None,
    ) -> Future[Reply]:
        return self._link.submit(
            request,
            nbytes=payload_nbytes(request.mm),
            timeout=timeout,
            begun_ns=begun_ns,
            timings=timings,
            owner=self,
            room=room,
        )

    def close(self) -> None:
        """End the engine; futures that are still open get EngineError. Idempotent; while another
        thread is about it this returns at once."""
        self._link.close()
        self._closer.detach()  # not before: an interrupted close is finished by the next one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
