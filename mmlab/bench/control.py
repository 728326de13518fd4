"""The control of a trial: another image must give another answer.

Two requests differ in nothing but the image. If their answers were the same, the images would not
reach the model, and no time measured would be worth anything. They are never measured themselves,
which makes them the warm-up of a timed trial. A workload without images is asked with its smallest
video, or its shortest recording.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.bench import workloads
from mmlab.bench.checks import DeliveryError
from mmlab.bench.events import Control
from mmlab.bench.media import Sources
from mmlab.bench.sending import Sender, answer
from mmlab.bench.spec import ECHO, TrialSpec
from mmlab.bench.workloads import Request
from mmlab.pipeline import Reply

_TRIES = 4  # two photographs may share a few greedy tokens by chance; four hardly do


def control(spec: TrialSpec, sender: Sender, sources: Sources) -> Control:
    """Sends one image after another until one is answered differently; DeliveryError if none is."""
    request = probe(workloads.get(spec.workload).requests(spec.scale))
    first: Reply | None = None
    for media in sources.draw([request] * _TRIES, [spec.seed, 0xC0DE]):
        reply = answer(spec, sender.prepare(request.prompt, media))
        if first is None:
            first = reply
            continue
        if reply.checksum == first.checksum:
            raise DeliveryError(
                f"{spec.strategy}: two different {request.case} arrived as the same bytes "
                f"(checksum {reply.checksum:#018x})"
            )
        if reply.token_ids != first.token_ids or spec.model == ECHO:
            return Control((first.checksum, reply.checksum), (first.token_ids, reply.token_ids))
    raise DeliveryError(
        f"{spec.strategy}: {_TRIES} different {request.case} gave one and the same answer "
        f"{first.token_ids if first else []}: they do not influence model '{spec.model}'"
    )


def probe(requests: Sequence[Request]) -> Request:
    """A request with one image, one video or one recording: the first of these that occurs."""
    if any(request.num_images for request in requests):
        return Request("images", "What is in this picture?", 1)
    videos = [clip for request in requests for clip in request.videos]
    if videos:
        smallest = min(videos, key=lambda clip: (clip.frames, clip.height * clip.width))
        return Request("videos", "What happens in this film?", 0, videos=(smallest,))
    shortest = min(seconds for request in requests for seconds in request.audios)
    return Request("recordings", "What can be heard?", 0, audios=(shortest,))
