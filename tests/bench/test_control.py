"""The control: it must fail where images do not reach the model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from mmlab.bench import control, images
from mmlab.bench.checks import DeliveryError
from mmlab.bench.images import Pixels
from mmlab.bench.sending import Prepared, answer, check_arrival
from mmlab.bench.spec import TrialSpec
from mmlab.pipeline import Reply

GEMMA = TrialSpec(strategy="msgpack")
ECHO = TrialSpec(strategy="msgpack", model="echo")


def reply(checksum: int, token_ids: list[int]) -> Reply:
    return Reply(
        request_id=1,
        token_ids=token_ids,
        text="",
        checksum=checksum,
        timings={},
        payload_nbytes=1,
        wire_nbytes=1,
        num_frames=1,
        pinned=False,
        device="cpu",
        batch_requests=1,
    )


class Scripted:
    """A sender that knows its replies beforehand."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.seen: list[bytes] = []

    def prepare(self, prompt: str, images: Sequence[Pixels]) -> Prepared:
        self.seen += [image.tobytes() for image in images]
        future: Future[Reply] = Future()
        future.set_result(self.replies.pop(0))
        return Prepared(lambda max_new_tokens: future)


def test_two_images_that_are_answered_differently_are_enough() -> None:
    sender = Scripted(reply(1, [5, 6]), reply(2, [5, 7]))
    told = control.control(GEMMA, sender, images.photographs())
    assert told.checksums == (1, 2) and told.answers == ([5, 6], [5, 7])
    assert len(set(sender.seen)) == 2


def test_more_images_are_tried_before_the_model_is_blamed() -> None:
    sender = Scripted(reply(1, [5]), reply(2, [5]), reply(3, [6]))
    assert control.control(GEMMA, sender, images.photographs()).checksums == (1, 3)
    deaf = Scripted(*(reply(n, [5]) for n in range(4)))
    with pytest.raises(DeliveryError, match="4 different images gave one and the same answer"):
        control.control(GEMMA, deaf, images.photographs())
    assert len(set(deaf.seen)) == 4


def test_the_same_bytes_for_another_image_are_an_error_at_once() -> None:
    for spec in (GEMMA, ECHO):
        sender = Scripted(reply(1, [5]), reply(1, [6]))
        with pytest.raises(DeliveryError, match="arrived as the same bytes"):
            control.control(spec, sender, images.photographs())


def test_echo_is_judged_by_its_bytes_alone() -> None:
    sender = Scripted(reply(1, []), reply(2, []))
    assert control.control(ECHO, sender, images.photographs()).checksums == (1, 2)


def test_a_batch_that_is_not_what_was_sent_is_noticed() -> None:
    future: Future[Reply] = Future()
    future.set_result(reply(1, []))
    assert answer(ECHO, Prepared(lambda max_new_tokens: future, checksum=1)).checksum == 1
    with pytest.raises(DeliveryError, match=r"has checksum 0x0+1, what was sent has 0x0+2"):
        check_arrival(Prepared(lambda max_new_tokens: future, checksum=2), reply(1, []))
