"""The control: it must fail where images do not reach the model."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import pytest

from mmlab.bench import control, workloads
from mmlab.bench.checks import DeliveryError
from mmlab.bench.media import Media, Sources, load
from mmlab.bench.sending import Prepared, answer, check_arrival
from mmlab.bench.spec import TrialSpec
from mmlab.pipeline import Reply

GEMMA = TrialSpec(strategy="msgpack")
ECHO = TrialSpec(strategy="msgpack", model="echo")


@pytest.fixture(scope="module")
def sources() -> Sources:
    return load(workloads.get("single"))


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
        self.seen: list[tuple[str, bytes]] = []

    def prepare(self, prompt: str, media: Media) -> Prepared:
        self.seen += [("image", image.tobytes()) for image in media.images]
        self.seen += [(f"video {v.shape}", v.tobytes()) for v in media.videos]
        self.seen += [(f"audio {v.shape}", v.tobytes()) for v in media.audios]
        future: Future[Reply] = Future()
        future.set_result(self.replies.pop(0))
        return Prepared(lambda max_new_tokens: future)


def test_two_images_that_are_answered_differently_are_enough(sources: Sources) -> None:
    sender = Scripted(reply(1, [5, 6]), reply(2, [5, 7]))
    told = control.control(GEMMA, sender, sources)
    assert told.checksums == (1, 2) and told.answers == ([5, 6], [5, 7])
    assert len(set(sender.seen)) == 2


def test_more_images_are_tried_before_the_model_is_blamed(sources: Sources) -> None:
    sender = Scripted(reply(1, [5]), reply(2, [5]), reply(3, [6]))
    assert control.control(GEMMA, sender, sources).checksums == (1, 3)
    deaf = Scripted(*(reply(n, [5]) for n in range(4)))
    with pytest.raises(DeliveryError, match="4 different images gave one and the same answer"):
        control.control(GEMMA, deaf, sources)
    assert len(set(deaf.seen)) == 4


def test_the_same_bytes_for_another_image_are_an_error_at_once(sources: Sources) -> None:
    for spec in (GEMMA, ECHO):
        sender = Scripted(reply(1, [5]), reply(1, [6]))
        with pytest.raises(DeliveryError, match="arrived as the same bytes"):
            control.control(spec, sender, sources)


def test_echo_is_judged_by_its_bytes_alone(sources: Sources) -> None:
    sender = Scripted(reply(1, []), reply(2, []))
    assert control.control(ECHO, sender, sources).checksums == (1, 2)


def test_a_batch_that_is_not_what_was_sent_is_noticed() -> None:
    future: Future[Reply] = Future()
    future.set_result(reply(1, []))
    assert answer(ECHO, Prepared(lambda max_new_tokens: future, checksum=1)).checksum == 1
    with pytest.raises(DeliveryError, match=r"has checksum 0x0+1, what was sent has 0x0+2"):
        check_arrival(Prepared(lambda max_new_tokens: future, checksum=2), reply(1, []))


@pytest.mark.parametrize(
    ("workload", "kind"),
    [
        ("ragged", "image"),
        ("video", "video (4, 360, 640, 3)"),
        ("audio", "audio (20000,)"),
    ],
)
def test_a_workload_is_asked_with_the_least_of_what_it_carries(workload: str, kind: str) -> None:
    spec = msgspec.structs.replace(GEMMA, workload=workload, scale=0.125)
    sender = Scripted(reply(1, [5]), reply(2, [6]))
    control.control(spec, sender, load(workloads.get(workload)))
    assert [name for name, _ in sender.seen] == [kind] * 2
    assert len(set(sender.seen)) == 2
    deaf = Scripted(*(reply(n, [5]) for n in range(4)))
    with pytest.raises(DeliveryError, match=r"4 different \w+ gave one and the same answer"):
        control.control(spec, deaf, load(workloads.get(workload)))
