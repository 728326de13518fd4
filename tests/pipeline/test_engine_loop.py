"""The engine's loop, inside the test: batches, aborts, bad requests, exactly one answer each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest
import torch
from pipeline_parts import ME, Answer, FakeModel, engine_here, images, wait_for

from mmlab import KwargsItems, batched, flat
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import EngineReply, ErrorReply, Kind


def test_a_greeting_is_answered() -> None:
    with engine_here() as engine:
        engine.say(Kind.HELLO)
        assert engine.receive()[:2] == (ME, Kind.HELLO)


def test_echo_answers_with_the_checksum_of_what_arrived() -> None:
    items = images(3)
    with engine_here() as engine:
        request_id = engine.send(items)
        got_id, kind, reply = engine.receive()
    assert (got_id, kind) == (request_id, Kind.REPLY)
    assert isinstance(reply, EngineReply)
    assert reply.checksum == checksum_items(items)
    assert reply.token_ids == [] and reply.device == "cpu" and reply.pinned is False
    assert {"decode", "queue", "reduce", "h2d", "encoder", "checksum"} <= reply.timings.keys()


def test_a_request_without_items_is_answered_too() -> None:
    with engine_here(FakeModel()) as engine:
        engine.send(None, [5, 6])
        reply = engine.receive()[2]
    assert isinstance(reply, EngineReply)
    assert reply.token_ids == [5, 6, 0]
    assert reply.checksum == checksum_items(None) == checksum_items(KwargsItems({}))


def test_requests_that_wait_form_one_batch_and_keep_their_answers() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        model.gate.clear()
        engine.send(images(1))
        assert model.entered.wait(5)  # busy: the next ones wait and come as one batch
        sent = {engine.send(images(n, 10.0 * n)): images(n, 10.0 * n) for n in (1, 2, 3)}
        sent[engine.send(None)] = KwargsItems({})
        assert wait_for(lambda: len(engine.engine._inbox._waiting) == 4)
        model.gate.set()
        engine.receive()
        for request_id, items in sent.items():
            got_id, _, reply = engine.receive()
            assert isinstance(reply, EngineReply)
            assert got_id == request_id
            assert reply.checksum == checksum_items(items)
            assert reply.batch_requests == 4
            pixels = [e["pixel_values"].data for e in items.get("image", []) if e is not None]
            assert reply.token_ids == [1, 2 * sum(int(p.flatten()[0]) for p in pixels)]
    assert [len(p) for p in model.encoded] == [1, 1, 2, 3]  # the encoder sees one request at a time


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({"max_batch_items": 3}, [2, 1, 1]),  # 1 + 2 items, 3, then 2
        ({"max_batch_nbytes": 2000}, [1, 1, 1, 1]),  # an image has 768 bytes, and there is a header
        ({}, [4]),
    ],
)
def test_batches_keep_to_their_budgets(limits: dict[str, int], batches: list[int]) -> None:
    model = FakeModel()
    with engine_here(model, **limits) as engine:
        model.gate.clear()
        engine.send(None)
        assert model.entered.wait(5)
        for count in (1, 2, 3, 2):
            engine.send(images(count))
        assert wait_for(lambda: len(engine.engine._inbox._waiting) == 4)
        model.gate.set()
        engine.receive()
        replies = [engine.receive()[2] for _ in range(4)]
    sizes = [reply.batch_requests for reply in replies if isinstance(reply, EngineReply)]
    expected = [size for size in batches for _ in range(size)]
    assert sizes == expected


def test_one_bad_request_fails_alone() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        model.gate.clear()
        engine.send(None)
        assert model.entered.wait(5)
        good = [engine.send(images(2, 5.0))]
        bad_image = engine.send(images(1, -1.0))
        bad_prompt = engine.send(images(1), [666])
        bad_keys = engine.send(
            KwargsItems.from_processor({"wave": torch.ones(1, 4)}, {"wave": batched("audio")})
        )
        good.append(engine.send(images(1, 7.0)))
        model.gate.set()
        engine.receive()
        answers = {
            request_id: reply for request_id, _, reply in (engine.receive() for _ in "12345")
        }
    for request_id in good:
        assert isinstance(answers[request_id], EngineReply)
    for request_id, stage, error, message in (
        (bad_image, "encoder", "RuntimeError", "negative image"),
        (bad_prompt, "prefill", "ValueError", "bad prompt"),
        (bad_keys, "encoder", "EngineError", "takes image items"),
    ):
        reply = answers[request_id]
        assert isinstance(reply, ErrorReply)
        assert (reply.stage, reply.error) == (stage, error)
        assert message in reply.message and "Traceback" in reply.trace


def test_items_that_cannot_share_a_batch_fail_alone_or_not_at_all() -> None:
    """Flat elems of different dimensions raise for the batch; staged one by one they are fine."""
    model = FakeModel()
    with engine_here(None) as engine, engine_here(model):
        first = {"patches": torch.ones(4, 2)}, {"patches": flat("image", sizes=[4])}
        other = {"patches": torch.ones(4, 2, 2)}, {"patches": flat("image", sizes=[4])}
        sent = {}
        for _ in range(20):
            for outputs, config in (first, other):
                items = KwargsItems.from_processor(outputs, config)
                sent[engine.send(items)] = checksum_items(items)
        for _ in range(40):
            request_id, kind, reply = engine.receive()
            assert kind == Kind.REPLY and isinstance(reply, EngineReply)
            assert reply.checksum == sent.pop(request_id)
    assert not sent


def test_the_checksum_does_not_depend_on_the_neighbours() -> None:
    small, large = images(2, 1.0, (3, 4, 4)), images(2, 2.0, (3, 6, 5))
    with engine_here() as engine:
        sent = {}
        for _ in range(25):
            for items in (small, large):
                sent[engine.send(items)] = checksum_items(items)
        sizes = set()
        for _ in range(50):
            request_id, _, reply = engine.receive()
            assert isinstance(reply, EngineReply)
            assert reply.checksum == sent.pop(request_id)
            sizes.add(reply.batch_requests)
    assert not sent


def test_an_aborted_request_ends_once_wherever_it_is() -> None:
    model = FakeModel()
    with engine_here(model) as engine:
        model.gate.clear()
        busy = engine.send(images(1))
        assert model.entered.wait(5)
        waiting = engine.send(images(1))
        engine.say(Kind.ABORT, waiting)
        assert engine.receive()[:2] == (waiting, Kind.ABORTED)  # at once, though the model is busy
        engine.say(Kind.ABORT, busy)
        engine.say(Kind.ABORT, busy + 1000)  # unknown: nobody to tell
        engine.say(Kind.HELLO)
        assert engine.receive()[1] == Kind.HELLO
        model.gate.set()
        assert engine.receive()[0] == busy
        after = engine.send(images(1))
        assert engine.receive()[:2] == (after, Kind.REPLY)
        assert engine.receiver.receive(0.05) is None


def test_the_same_id_twice_is_rejected_while_it_is_under_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = FakeModel()
    with engine_here(model) as engine, caplog.at_level(logging.WARNING, "mmlab.engine"):
        model.gate.clear()
        request_id = engine.send(None)
        assert model.entered.wait(5)
        engine._serial -= 1
        assert engine.send(None) == request_id
        engine.say(Kind.HELLO)
        assert engine.receive()[1] == Kind.HELLO
        model.gate.set()
        assert engine.receive()[:2] == (request_id, Kind.REPLY)
        assert engine.receiver.receive(0.05) is None
    assert "is under way already" in caplog.text


def test_a_message_of_an_unknown_kind_is_answered_with_an_error() -> None:
    with engine_here() as engine:
        engine.say(200, ME + 7)
        request_id, kind, reply = engine.receive()
    assert (request_id, kind) == (ME + 7, Kind.ERROR)
    assert isinstance(reply, ErrorReply)
    assert "kind 200" in reply.message and reply.rejected == 1


@pytest.mark.parametrize("keeps", [False, True], ids=["lets go", "control: the model keeps them"])
def test_frames_are_let_go_before_the_text_model_runs(keeps: bool) -> None:
    """What the encoder has consumed is not kept for the whole answer (vllm#57368).

    Over inproc the engine's frames are the sender's own memory, so the sender sees the end of them.
    """
    held_frames: list[int] = []
    kept: list[torch.Tensor] = []

    class Watching(FakeModel):
        def encode_images(self, pixel_values: torch.Tensor) -> torch.Tensor:
            if keeps:
                kept.append(pixel_values)
            return pixel_values.flatten(1)[:, :2].clone()

        def generate(
            self,
            token_ids: Sequence[int],
            features: Mapping[str, torch.Tensor] | None,
            max_new_tokens: int,
        ) -> Answer:
            wait_for(lambda: engine.sender.unreleased() == 0, 0.5)
            held_frames.append(engine.sender.unreleased())
            return Answer([])

    with engine_here(Watching()) as engine:
        engine.send(images(2, shape=(3, 224, 224)))
        engine.receive()
    assert held_frames == [int(keeps)]
