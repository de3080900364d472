"""The ``headrace`` command: arguments in, one module a command behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headrace_contracts.keys import DEFAULT_BAND
from headrace_kit.log import configure_logging

from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir

if TYPE_CHECKING:  # commands import what they need: `headrace --help` stays quick
    from headrace_cli.endpoint import Endpoint
    from headrace_cli.fleet import Fleet
    from headrace_cli.keys import KeyPlace

app = typer.Typer(
    name="headrace",
    help="Serve language models: gateway, Redis streams, engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Not "rich", which takes the brackets of "[default: …]" for styles and leaves them out.
    rich_markup_mode="markdown",
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
    from headrace_cli.processes import ServeOptions
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


UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="The API [default: $HEADRACE_URL, else the local stack]."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", help="[default: $HEADRACE_API_KEY, else the local stack's]."),
]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        help="Another deployment's server, with HEADRACE_GATEWAY_REDIS_PASSWORD[_FILE] and, to make "
        "keys, HEADRACE_GATEWAY_PEPPER[_FILE] set [default: the local stack's].",
    ),
]


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="One message; none: talk.")] = None,
    model: Annotated[str | None, typer.Option()] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="0: always the likeliest.")
    ] = 0.3,
    url: UrlOption = None,
    api_key: KeyOption = None,
    state_dir: StateOption = None,
) -> None:
    """Talk to the model. Ctrl-C cancels an answer."""
    from headrace_cli import chat as command

    endpoint = _endpoint(url, api_key, state_dir)
    if not command.run(
        endpoint,
        model=model,
        message=message,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
    ):
        raise typer.Exit(130)  # as of all that Ctrl-C ends


@app.command()
def cancel(
    request_id: str,
    url: UrlOption = None,
    api_key: KeyOption = None,
    state_dir: StateOption = None,
) -> None:
    """Cancel a request by its id, in whatever state it is."""
    from headrace_cli import cancel as command

    command.run(_endpoint(url, api_key, state_dir), request_id)


@app.command()
def ps(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Requests shown.")] = 20,
    url: UrlOption = None,
    api_key: KeyOption = None,
    state_dir: StateOption = None,
) -> None:
    """List the key's own requests that have not ended, and what each does or waits for."""
    from headrace_cli import requests as command

    command.list_live(_endpoint(url, api_key, state_dir), limit=limit)


@app.command()
def why(
    request_id: str,
    url: UrlOption = None,
    api_key: KeyOption = None,
    state_dir: StateOption = None,
) -> None:
    """Say why a request waits, or that it does not."""
    from headrace_cli import requests as command

    command.why(_endpoint(url, api_key, state_dir), request_id)


@app.command()
def fetch(
    model: Annotated[str, typer.Argument(help="hf://org/name@revision, or as for `serve`.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file again, and not its size alone.")
    ] = False,
) -> None:
    """Bring a model here: downloaded, resumed where it was broken off, and proved whole."""
    from headrace_cli import fetch as command

    command.run(model, verify=verify)


@app.command()
def verify(
    model: Annotated[str | None, typer.Option(help="[default: the first.]")] = None,
    max_tokens: Annotated[int, typer.Option(min=8, help="Of the stream that is read.")] = 48,
    engine_metrics: Annotated[
        str | None, typer.Option(help="An engine's port, like http://127.0.0.1:9100.")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Check a deployment: keys, streams, resuming, cancelling, limits, metrics. Exit code 1 when
    something is not as it should be."""
    from headrace_cli import verify as command

    plan = command.Plan(
        _endpoint(url, api_key, state_dir),
        model=model,
        max_tokens=max_tokens,
        key_place=command.key_place(url, redis_url, _state(state_dir), os.environ),
        engine_metrics=engine_metrics,
    )
    if not command.run(plan):
        raise typer.Exit(1)


@app.command()
def doctor(
    http_port: Annotated[int, typer.Option(min=0, max=65_535)] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65_535)] = 9000,
    model: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
    state_dir: StateOption = None,
) -> None:
    """Say what is wrong here and how to mend it. Exit code 1 when something is."""
    from headrace_cli import doctor as command

    question = command.Question(_state(state_dir), os.environ, http_port, grpc_port, model)
    if not command.print_findings(asyncio.run(command.examine(question))):
        raise typer.Exit(1)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A journal.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of a scheduler setting: compare; repeat."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take what is whole of a journal never closed.")
    ] = False,
) -> None:
    """Make a journal's plans again, and say where they differ. Exit code 1 when they do."""
    from headrace_cli import replay as command

    if not command.run(file, changes=change or [], partial=partial):
        raise typer.Exit(1)


@app.command()
def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="Lines of JSON: arrival_s, prompt_tokens, output_tokens, tenant, band, "
            "prefix_group, prefix_tokens [default: a Poisson process].",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, max=1_000_000)] = 500,
    rate: Annotated[float, typer.Option(min=0.001, max=1e6, help="Requests per second.")] = 4.0,
    prompt_tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="Mean.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Mean.")] = 128,
    prefix_groups: Annotated[int, typer.Option(min=0, help="Kinds of shared prefixes.")] = 8,
    tenants: Annotated[int, typer.Option(min=1)] = 2,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of a scheduler setting; repeat."),
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(help="A journal: its batches' times, and its settings.")
    ] = None,
    base_ms: Annotated[float, typer.Option(min=0, max=1e6, help="Of each batch.")] = 4.0,
    decode_row_us: Annotated[
        float, typer.Option(min=0, max=1e9, help="Of each decoding row.")
    ] = 20.0,
    prefill_token_us: Annotated[
        float, typer.Option(min=0, max=1e9, help="Of each prompt token.")
    ] = 40.0,
    context_token_ns: Annotated[
        float, typer.Option(min=0, max=1e9, help="Of each position that a row attends to.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write an SVG.")] = None,
) -> None:
    """Run the scheduler over a trace, with batches taking what a cost model says."""
    from headrace_engine.scheduler.simulate.cost import CostModel
    from headrace_engine.scheduler.simulate.trace import Synthetic

    from headrace_cli import simulate as command

    made = Synthetic(
        requests=requests,
        rate=rate,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefix_groups=prefix_groups,
        tenants=tenants,
        seed=seed,
    )
    cost = CostModel(
        base_ms / 1e3, decode_row_us / 1e6, prefill_token_us / 1e6, context_token_ns / 1e9
    )
    print(
        command.run(
            made if trace is None else trace,
            changes=change or [],
            fit=fit,
            cost=cost,
            as_json=as_json,
            picture=picture,
        )
    )


keys_app = typer.Typer(
    help="Make, list, revoke, delete, export and import API keys.", no_args_is_help=True
)
app.add_typer(keys_app, name="keys")


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Option(help="For people.")] = "unnamed",
    tenant: Annotated[str, typer.Option(help="Who shares a queue and limits.")] = "default",
    scope: Annotated[list[str] | None, typer.Option(help="inference, admin; repeat.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only these; repeat.")] = None,
    band: Annotated[int, typer.Option(help="Priority, 0 the most urgent.")] = DEFAULT_BAND,
    expires: Annotated[str | None, typer.Option(help="Like 12h, 30d.")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="Requests at once.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Calls admitted.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Prompt and output.")] = None,
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Make a key. It is printed once, alone on standard output."""
    from headrace_cli import keys

    wish = keys.KeyWish(
        name=name,
        tenant=tenant,
        scopes=scope or ["inference"],
        models=model or [],
        band=band,
        expires=expires,
        max_concurrency=max_concurrency,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    asyncio.run(keys.create(_place(redis_url, state_dir), wish))


@keys_app.command("list")
def keys_list(redis_url: RedisOption = None, state_dir: StateOption = None) -> None:
    """List the keys, without their secrets."""
    from headrace_cli import keys

    asyncio.run(keys.show(_place(redis_url, state_dir)))


@keys_app.command("revoke")
def keys_revoke(
    public_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")],
    after: Annotated[str | None, typer.Option(help="Not now but then: 1h, 7d.")] = None,
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Revoke a key. Gateways refuse it within seconds."""
    from headrace_cli import keys

    asyncio.run(keys.revoke(_place(redis_url, state_dir), public_id, after=after))


@keys_app.command("delete")
def keys_delete(
    public_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")],
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Delete a key with all that is known of it. It opens nothing any more, and never comes back."""
    from headrace_cli import keys

    asyncio.run(keys.forget(_place(redis_url, state_dir), public_id))


@keys_app.command("export")
def keys_export(
    file: Annotated[Path, typer.Argument(help="- is standard output.")],
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Write every key to a file, for `keys import` after a loss of the server."""
    from headrace_cli import keys

    asyncio.run(keys.export(_place(redis_url, state_dir), file))


@keys_app.command("import")
def keys_import(
    file: Annotated[Path, typer.Argument(help="- is standard input.")],
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Put exported keys back, except deleted ones; revoked ones stay revoked. The deployment must
    have the same pepper."""
    from headrace_cli import keys

    asyncio.run(keys.load(_place(redis_url, state_dir), keys.read_export(file)))


bench_app = typer.Typer(help="Small measurements.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Requests = Annotated[int, typer.Option(min=1, max=100_000)]
Concurrency = Annotated[int, typer.Option(min=1, max=4096, help="Requests in flight at once.")]
PromptTokens = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="Of each request; all differ.")
]
OutputTokens = Annotated[int, typer.Option(min=1, max=1_000_000, help="Of each request.")]


@bench_app.command("served")
def bench_served(
    requests: Requests = 16,
    concurrency: Concurrency = 4,
    prompt_tokens: PromptTokens = 128,
    output_tokens: OutputTokens = 64,
    model: Annotated[str | None, typer.Option()] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    state_dir: StateOption = None,
) -> None:
    """Measure a served stack over HTTP: tokens per second, first token, gaps."""
    from headrace_cli import bench

    wanted = bench.Load(requests, concurrency, prompt_tokens, output_tokens)
    endpoint = _endpoint(url, api_key, state_dir)
    print(asyncio.run(bench.served(endpoint, wanted, model=model)))


@bench_app.command("offline")
def bench_offline(
    model: Annotated[str | None, typer.Argument(help="As for `serve`.")] = None,
    dtype: Annotated[str | None, typer.Option()] = None,
    executor: Annotated[str | None, typer.Option()] = None,
    requests: Requests = 8,
    concurrency: Concurrency = 8,
    prompt_tokens: PromptTokens = 128,
    output_tokens: OutputTokens = 64,
) -> None:
    """Measure the engine alone, in this process."""
    from headrace_cli import bench

    wanted = bench.Load(requests, concurrency, prompt_tokens, output_tokens)
    print(bench.offline(wanted, model=model, dtype=dtype, executor=executor))


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two.")] = 2.0,
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Show models, queues and engines, refreshed until Ctrl-C."""
    from headrace_cli import fleet

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(fleet.top(_fleet(redis_url, state_dir), interval_s=interval, once=once))


@app.command()
def drain(
    engine: Annotated[str, typer.Argument(help="Its id as `top` shows it, or how that begins.")],
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, max=86_400, help="Seconds for what runs [default: the engine's drain_s]."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has ended.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to --wait [default: --grace and 60 more, else 600]."),
    ] = None,
    redis_url: RedisOption = None,
    state_dir: StateOption = None,
) -> None:
    """Let an engine finish or hand over what it runs, and end."""
    from headrace_cli import fleet

    asyncio.run(
        fleet.run_drain(
            _fleet(redis_url, state_dir), engine, grace_s=grace, wait=wait, timeout_s=timeout
        )
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


def _endpoint(url: str | None, api_key: str | None, state_dir: Path | None) -> Endpoint:
    from headrace_cli.endpoint import Endpoint

    return Endpoint.find(url, api_key, _state(state_dir), os.environ)


def _fleet(redis_url: str | None, state_dir: Path | None) -> Fleet:
    from headrace_cli.fleet import Fleet

    return Fleet.find(redis_url, _state(state_dir), os.environ)


def _place(redis_url: str | None, state_dir: Path | None) -> KeyPlace:
    from headrace_cli.keys import KeyPlace

    return KeyPlace.find(redis_url, _state(state_dir), os.environ)


def main() -> None:
    """Entry point: turns our errors into a message and exit code 1."""
    # what is logged on the way is for people, and never part of what a command prints
    configure_logging(service="cli", level="warning", format="console")
    try:
        try:
            app()
        finally:
            print(end="", flush=True)
    except CommandFailed as error:
        print(f"headrace: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:  # what a command opens tells of itself: this is standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it is flushed once more at exit
        if not isinstance(error, BrokenPipeError):  # `| head` has read enough
            print(f"headrace: {error}", file=sys.stderr)
        raise SystemExit(1) from None
