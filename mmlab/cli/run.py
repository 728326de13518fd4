"""`mmlab run`, the main job: its options, what they mean, and the order of things.

Everything is checked before anything starts; then the notebook runs with these options as its
parameters, and what it measured is shown as a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmlab.bench import workloads
from mmlab.bench.spec import RunSettings
from mmlab.bench.validate import parse_strategies
from mmlab.cli import defaults, job, pull_requests
from mmlab.cli.sizes import parse_nbytes
from mmlab.errors import UsageError


def run(
    strategies: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Which to compare; `mmlab strategies` lists them.",
            show_default="all that make sense on this machine",
        ),
    ] = "",
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            show_default=defaults.WORKLOAD,
            help="doc-mix (15 prompts of 4 to 32 images, then all at once), single (1 image a "
            "prompt), multi (4), video, audio, ragged (mixed sizes), many-small (256 thumbnails), "
            "or a file of your own, PATH.toml.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            show_default=defaults.MODEL,
            metavar="NAME|DIR",
            help="gemma3-tiny or gemma4-tiny (random weights, real image sizes; the second takes "
            "video and audio too), gemma3-4b or gemma4-e2b (real dimensions, for a GPU), echo (no "
            "model: delivery only), or a Gemma 3 or 4 checkpoint: its folder or hub id.",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="The images of a prompt, the frames of a video and the seconds of a recording are "
            "multiplied by this, at most 1.",
            show_default=f"{defaults.SCALE:g}",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Alone: the tables of vLLM #16432 and #19169, doc-mix at full size with echo and "
            "with gemma3-tiny, beside the published figures; under 25 minutes on 2 cores. With "
            "--model or --workload: those at full size, as --scale 1.",
        ),
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Your own images; where more are needed, other crops of the same.",
            show_default="photographs that ship with scikit-image and matplotlib",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a folder with an image that does not decode.")
    ] = False,
    repeats: Annotated[
        int, typer.Option(help="Timed trials of each strategy, each in fresh processes.")
    ] = defaults.REPEATS,
    seed: Annotated[int, typer.Option(help="Seed of images, order of trials, weights.")] = 0,
    device: Annotated[
        str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    max_new_tokens: Annotated[
        int, typer.Option(help="Tokens of each answer, chosen greedily.")
    ] = defaults.MAX_NEW_TOKENS,
    max_inflight: Annotated[
        str, typer.Option(metavar="SIZE", help="Payload in flight, at most: 512MiB, 1GiB.")
    ] = "1GiB",
    engine_threads: Annotated[
        int | None,
        typer.Option(help="Torch threads of the engine.", show_default="torch's own choice"),
    ] = None,
    memory: Annotated[
        bool, typer.Option(help="Measure memory too, before anything is timed.")
    ] = True,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", metavar="NAME=VALUE", help="Any parameter of the notebook."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new folder for the results.", show_default="runs/<UTC time>"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, not as a table.")
    ] = False,
) -> None:
    """The main job: send photographs to a model in another process, with every strategy.

    Each strategy carries the same inputs from a frontend process (the model's own image processor,
    and those of video and audio) to an engine process (the model; by default Gemma 3 with random
    weights and images of 896 x 896). Measured are latency, the time of every stage, images a
    second, and peak memory as multiples of the payload. The job fails unless all strategies of one
    payload dtype deliver the same bytes and get the same tokens; tokens that another dtype changes
    are counted.

    It leaves the executed notebook, report.html, figures and the raw rows in a folder of its own.

    Examples:

        mmlab run

        mmlab run --images ~/Pictures --strategies pickle,msgpack --scale 0.25

        mmlab run --model echo --full     # delivery alone, 128 images of 9.6 MB

        mmlab run --full                  # the tables of the two pull requests
    """
    if full and scale is not None:
        raise UsageError(f"--full is --scale 1: give it or --scale {scale:g}, not both")
    tables = full and model is None and workload is None
    settings = RunSettings(
        strategies=parse_strategies(strategies, device),
        workload=workloads.absolute(workload or defaults.WORKLOAD),
        model=model or defaults.MODEL,
        scale=1.0 if full else defaults.SCALE if scale is None else scale,
        seed=seed,
        repeats=repeats,
        memory_trials=int(memory),
        images=None if images is None else str(images.expanduser().absolute()),
        strict=strict,
        device=device,
        max_new_tokens=max_new_tokens,
        max_inflight_nbytes=parse_nbytes(max_inflight),
        engine_threads=engine_threads,
    )
    if tables:
        if parameter:
            raise UsageError("--parameter is for the notebook, which --full alone does not run")
        pull_requests.job(settings, strategies, out, as_json=as_json)
        return
    job.main_job(settings, parameter or [], out, as_json=as_json)
