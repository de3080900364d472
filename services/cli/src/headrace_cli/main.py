"""The ``headrace`` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir

app = typer.Typer(
    name="headrace",
    help="Serve language models: gateway, Redis streams, engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Keys, data and logs of the local stack [default: $HEADRACE_STATE_DIR, "
        "else $XDG_STATE_HOME/headrace].",
        show_default=False,
    ),
]


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder, pkg://package/file, or hf://org/name@revision from the local cache "
            "[default: SmolLM2-135M-Instruct from its package].",
            show_default=False,
        ),
    ] = None,
    http_port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one.")] = 9000,
    gateways: Annotated[
        int, typer.Option(min=1, max=64, help="Gateway processes, on consecutive free ports.")
    ] = 1,
    api_key: Annotated[
        str | None,
        typer.Option(help="Accept this key, instead of the one that is made and stored."),
    ] = None,
    engine_config: Annotated[
        Path | None, typer.Option(help="YAML file with the sections engine and gateway.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32 (exact), or bfloat16 or packed (faster)."),
    ] = None,
    executor: Annotated[str | None, typer.Option(help="cpu, or echo (no model).")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Leave the processes' lines to the log files.")
    ] = False,
    state_dir: StateOption = None,
) -> None:
    """Run the local stack: embedded server, engine and gateway. Ctrl-C stops it."""
    from headrace_cli.serve import ServeOptions
    from headrace_cli.serve import serve as run

    run(
        ServeOptions(
            model=model,
            http_port=http_port,
            grpc_port=grpc_port,
            gateways=gateways,
            api_key=api_key,
            config_file=engine_config,
            dtype=dtype,
            executor=executor,
            quiet=quiet,
        ),
        _state(state_dir),
    )


@app.command()
def reset(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Delete the local stack's state: API keys, stored data, logs."""
    state = _state(state_dir)
    if not state.path.exists():
        print(f"{state.path} does not exist: nothing to do.")
        return
    if not yes and not typer.confirm(f"Delete {state.path}, with every API key in it?"):
        raise typer.Exit(1)
    state.remove()
    print(f"removed {state.path}")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(f"headrace {installed('headrace-cli')}")


def _state(given: Path | None) -> StateDir:
    return StateDir.locate(given, os.environ)


def main() -> None:
    """Entry point: turns our errors into a message and exit code 1."""
    try:
        app()
    except CommandFailed as error:
        print(f"headrace: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        raise SystemExit(1) from None
