"""The `mmlab` command: its commands, and one place where errors become a line and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mmlab.cli import bench, doctor, run, strategies
from mmlab.errors import MMLabError, UsageError, unknown

# typer brings click along, or a copy of its own: its errors are found through a public one.
_ClickError = typer.BadParameter.__mro__[2]
_INTERRUPTED = 130

app = typer.Typer(
    name="mmlab",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command("run")(run.run)
app.command("strategies")(strategies.strategies)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """How should images travel from a serving frontend to the GPU? Measure it on this machine.

    `mmlab run` sends real photographs through Gemma 3's own image processor to a model in another
    process, once for each way of sending (a "strategy"), and shows what each way costs.

    Start with `mmlab doctor`, then `mmlab run`.
    """
    if version:
        from mmlab import __version__

        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; never a traceback for a known error."""
    try:
        code = app(
            args=list(arguments) if arguments is not None else None,
            prog_name="mmlab",
            standalone_mode=False,
        )
        if code == _INTERRUPTED:  # typer turns Ctrl-C into its exit code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except UsageError as error:
        return _say(error, 2)
    except (MMLabError, OSError) as error:  # OSError: a full disk, a folder that went away
        return _say(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        # The notebook's client would now report, task by task, that its kernel has ended.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        print("mmlab: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        if not isinstance(error, _ClickError):
            raise
        return _say(_readable(error), getattr(error, "exit_code", 2))


def _say(error: BaseException, code: int) -> int:
    line = " ".join(str(error).split()) or type(error).__name__
    print(f"mmlab: {line}", file=sys.stderr)
    return code


def _readable(error: Exception) -> Exception:
    """typer's own error; one about an option or command that does not exist names those that do."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if context is not None and option is not None and hasattr(error, "possibilities"):
        known = [o for p in context.command.params for o in p.opts if o.startswith("--")]
        return unknown(f"option of {context.command_path}", option, [*known, "--help"])
    message = getattr(error, "format_message", lambda: str(error))()
    commands = getattr(getattr(context, "command", None), "commands", None)
    if commands and message.startswith("No such command"):
        return unknown("command", message.split("'")[1], commands)
    return UsageError(message)
