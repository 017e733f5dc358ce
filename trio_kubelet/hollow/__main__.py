"""`python -m trio_kubelet.hollow --socket PATH`: the hollow runtime as a process of its own.

Its pods live as long as the process, so an agent may be restarted beside it and find them again.
It ends at SIGINT or SIGTERM.
"""

import signal
from contextlib import suppress
from pathlib import Path

import click
import trio

from trio_kubelet.hollow.images import HollowRegistry
from trio_kubelet.hollow.options import HollowOptions, Latencies
from trio_kubelet.hollow.runtime import open_hollow_runtime
from trio_kubelet.rpc import open_rpc_loop, serve
from trio_kubelet.tasks.clock import SystemClock


@click.command()
@click.option(
    "--socket",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Where to listen.",
)
@click.option("--latency", type=float, default=0.0, help="Seconds that each change takes.")
@click.option("--pull-seconds", type=float, default=0.0, help="Seconds that an image pull takes.")
@click.option("--image", "images", multiple=True, help="An image that is there from the start.")
@click.option("--name", default="hollow", help="The runtime's name, such as containerd.")
@click.option("--runtime-version", default="2.1.0", help="The runtime's version.")
@click.option("--seed", type=int, default=None, help="Makes ids repeatable; else by chance.")
@click.option("--events/--no-events", default=True, help="Whether it has a stream of events.")
@click.option("--files/--no-files", default=True, help="Whether it writes logs to their paths.")
def main(
    socket: Path,
    latency: float,
    pull_seconds: float,
    images: tuple[str, ...],
    name: str,
    runtime_version: str,
    seed: int | None,
    events: bool,
    files: bool,
) -> None:
    """Serve a container runtime without a kernel on a unix socket."""
    options = HollowOptions(
        name=name,
        version=runtime_version,
        seed=seed if seed is not None else SystemClock().now_ns(),
        images=images,
        registry=HollowRegistry(pull_seconds=pull_seconds),
        latencies=Latencies(
            run_pod_sandbox=latency,
            stop_pod_sandbox=latency,
            create_container=latency,
            start_container=latency,
        ),
        has_events=events,
        write_files=files,
    )
    failure: BaseException | None = None
    try:
        trio.run(run, socket, options)
    except* OSError as failures:
        # What is raised right here comes out in a group or by itself, as the Python version has it.
        failure = failures
    if failure is not None:
        raise click.ClickException(str(_first(failure))) from failure


async def run(socket: Path, options: HollowOptions) -> None:
    """Serve until a signal asks for the end."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_rpc_loop(),
            open_hollow_runtime(SystemClock(), options) as runtime,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(serve, [runtime], socket)
            click.echo(f"hollow runtime on unix://{socket}")
            with suppress(StopAsyncIteration):
                await anext(signals)
            nursery.cancel_scope.cancel()


def _first(failure: BaseException) -> BaseException:
    """Return the first failure that is not a group of failures."""
    return _first(failure.exceptions[0]) if isinstance(failure, BaseExceptionGroup) else failure


if __name__ == "__main__":
    main(prog_name="python -m trio_kubelet.hollow")
