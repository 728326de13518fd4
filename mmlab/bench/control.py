"""The control of a trial: another image must give another answer.

Two requests differ in nothing but the image. If their answers were the same, the images would not
reach the model, and no time measured would be worth anything. They are never measured themselves,
which makes them the warm-up of a timed trial.
"""

from __future__ import annotations

from mmlab.bench.checks import DeliveryError
from mmlab.bench.events import Control
from mmlab.bench.images import Photographs
from mmlab.bench.sending import Sender, answer
from mmlab.bench.spec import ECHO, TrialSpec
from mmlab.pipeline import Reply

_PROMPT = "What is in this picture?"
_TRIES = 4  # two photographs may share a few greedy tokens by chance; four hardly do


def control(spec: TrialSpec, sender: Sender, photographs: Photographs) -> Control:
    """Sends one image after another until one is answered differently; DeliveryError if none is."""
    images = photographs.draw(_TRIES, [spec.seed, 0xC0DE]).images
    first: Reply | None = None
    for image in images:
        reply = answer(spec, sender.prepare(_PROMPT, [image]))
        if first is None:
            first = reply
            continue
        if reply.checksum == first.checksum:
            raise DeliveryError(
                f"{spec.strategy}: two different images arrived as the same bytes "
                f"(checksum {reply.checksum:#018x})"
            )
        if reply.token_ids != first.token_ids or spec.model == ECHO:
            return Control((first.checksum, reply.checksum), (first.token_ids, reply.token_ids))
    raise DeliveryError(
        f"{spec.strategy}: {len(images)} different images gave one and the same answer "
        f"{first.token_ids if first else []}: they do not influence model '{spec.model}'"
    )
