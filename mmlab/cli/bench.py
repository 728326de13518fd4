"""`mmlab bench`: measurements of single parts, beside a peer and the physical limit."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mmlab.cli import staging
from mmlab.cli.gpu import gpu
from mmlab.cli.keeping import keep
from mmlab.cli.options import AsJson, Out, Peer, PeerPython, Seed, make_folder
from mmlab.cli.tables import table
from mmlab.errors import unknown

if TYPE_CHECKING:
    from mmlab.bench.wire.timing import Row

app = typer.Typer(help="Measure one part on its own, beside what others do and what is possible.")
app.command("staging")(staging.staging)
app.command("gpu")(gpu)


@app.command("wire")
def wire(
    peer: Peer = None,
    peer_python: PeerPython = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="1 to 64 items of 16 B to 64 MiB instead; with --out, a plot too."
        ),
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.05, help="Time for each message.")] = 2.0,
    seed: Seed = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="Of torch, on both sides; serving frontends use one.")
    ] = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What does it cost to encode and decode a message?

    Times are medians of interleaved rounds; a ratio is mmlab's time over the other's in the same
    round: below 1 mmlab is faster (--json has its 95 % interval). Plain msgspec is the limit for
    text.

    Examples:

        mmlab bench wire

        make peer && mmlab bench wire --peer vllm
    """
    from mmlab.bench.footing import footing
    from mmlab.bench.wire import launch, report

    if peer is not None and peer not in launch.PEERS:
        raise unknown("peer", peer, launch.PEERS)
    make_folder(out)
    python = launch.peer_python(peer_python) if peer else sys.executable
    found: list[dict[str, object]] = []
    interrupted = False
    try:
        for row in launch.run(
            python, peer=peer, sweep=sweep, seconds=seconds, seed=seed, threads=threads
        ):
            found.append(row)
    except KeyboardInterrupt:
        interrupted = True  # what was measured so far is shown and kept
    head = {key: value for row in found if "case" not in row for key, value in row.items()}
    version = head.get("peer")
    measured = cast("list[Row]", [row for row in found if "case" in row])
    rows = report.whole_cases(measured, version is not None)
    everything = {"peer": version, "environment": head.get("environment"), "rows": rows}
    where = footing(head, "msgspec")
    if as_json:
        typer.echo(json.dumps(everything))
    elif rows:
        lines = report.worst(rows) if sweep else [table(*report.table(rows))]
        typer.echo("\n".join([*lines, "", where]))
    if out is not None and rows:
        keep(out / "wire.json", everything)
        typer.echo(out / "wire.json", err=True)
        if sweep:
            from mmlab.plots import style
            from mmlab.plots.wire import sweep as draw

            peer_name = None if version is None else str(version)
            typer.echo(style.save(draw(rows, peer_name, where), out, "wire_sweep"), err=True)
    if interrupted:
        raise KeyboardInterrupt


@app.command("transfer")
def transfer(
    images: Annotated[
        str, typer.Option(metavar="N,N", help="Images in a message.")
    ] = "1,4,8,16,32",
    dtypes: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Of the pixels.")
    ] = "float32,bfloat16,uint8",
    ways: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Ways to measure; the memcpy and, with a peer, vLLM's own are always among them.",
            show_default="all",
        ),
    ] = None,
    sustained: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Numbers of images that are measured with two messages in flight, too, or none.",
            show_default="8, with --full all",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All sizes sustained, pickle up to 1 GiB a message.")
    ] = False,
    peer: Peer = None,
    peer_python: PeerPython = None,
    image_size: Annotated[
        int, typer.Option(min=1, max=8192, help="Height and width of an image, in pixels.")
    ] = 896,
    seconds: Annotated[
        float, typer.Option(min=0.05, help="Time for each size and dtype; at least 5 rounds.")
    ] = 5.0,
    seed: Seed = 0,
    threads: Annotated[int, typer.Option(min=1, help="Of torch, in every process.")] = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How long does a message take from encode to the batch in the other process?

    All ways have their turn in every round, each in processes that are alive and warm; a ratio is
    a time over the memcpy's, or over vLLM's, in the same round: below 1 it is faster.

    Examples:

        mmlab bench transfer --images 1,8 --dtypes float32

        make peer && mmlab bench transfer --peer vllm --out runs/transfer
    """
    from mmlab.cli import transfer as body

    body.transfer(
        images=images,
        dtypes=dtypes,
        ways=ways,
        sustained=sustained,
        full=full,
        peer=peer,
        python=peer_python,
        image_size=image_size,
        seconds=seconds,
        seed=seed,
        threads=threads,
        out=out,
        as_json=as_json,
    )


@app.command("kills")
def kills(
    repeats: Annotated[int, typer.Option(min=1, help="Trials of each stage and victim.")] = 20,
    seed: Annotated[
        int, typer.Option(help="Of the first trial; each further one has the next.")
    ] = 0,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="arena, msgpack or msgpack-tcp.", show_default="drawn by seed"
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="echo or gemma3-tiny.")] = "echo",
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="before-send, mid-send, queued, in-reduce, in-model.",
            show_default="all",
        ),
    ] = None,
    victims: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="frontend, engine, both.", show_default="all"),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Who notices a SIGKILL, how soon, and what is left behind?

    Every trial kills the frontend, the engine or both of a pipeline of its own, with requests under
    way, at one stage of a request. Exit code 1 where a limit was broken or anything was left: the
    trial is named with the options that run it alone. On two cores one takes 5 to 20 s.

    Examples:

        mmlab bench kills --repeats 1

        mmlab bench kills --stages mid-send --victims engine --seed 17 --repeats 1
    """
    from mmlab.cli import kills as body

    body.kills(
        repeats=repeats,
        seed=seed,
        strategy=strategy,
        model=model,
        stages=stages,
        victims=victims,
        out=out,
        as_json=as_json,
    )


@app.command("soak")
def soak(
    minutes: Annotated[float, typer.Option(min=0.05, max=10_000, help="How long.")] = 10.0,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Of the frontend.")] = 4,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="One of `mmlab strategies`.")
    ] = "arena",
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Of the requests.")] = 0,
    max_inflight_nbytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Payload under way at once.")
    ] = "128MiB",
    request: Annotated[
        str | None,
        typer.Option(metavar="THREAD/NUMBER", help="Send this one again, alone, and end."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Is every request answered once and rightly, and is nothing left over after minutes of load?

    Frontend threads send requests of random sizes, modalities and memories to an engine that
    answers with checksums, cancel some, and fill the byte budget. Exit code 1, and a sentence for
    each claim that did not hold.

    Examples:

        mmlab bench soak --minutes 2

        mmlab bench soak --strategy msgpack --out runs/soak
    """
    from mmlab.cli.soak import run_soak

    run_soak(
        minutes=minutes,
        threads=threads,
        strategy=strategy,
        seed=seed,
        max_inflight_nbytes=max_inflight_nbytes,
        request=request,
        out=out,
        as_json=as_json,
    )
