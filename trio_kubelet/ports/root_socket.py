"""A socket of gRPC for programs of the node that run as root: the file's mode lets in nobody else.

Clients are not trusted with more than the limits of the server all the same.
"""

from pathlib import Path

import structlog

from state_machines.backoff import BackoffPolicy
from trio_kubelet.rpc import ServerLimits, serve
from trio_kubelet.rpc.methods import Contract
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("ports")

MODE = 0o600
RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=30.0)


async def serve_root(
    service: object, path: Path, contract: Contract, limits: ServerLimits, *, what: str
) -> None:
    """Serve the socket until cancelled; where that fails it is tried again. `what` is its name."""
    retries = Retries(RETRY)
    while True:
        try:
            await serve([service], path, contracts=(contract,), mode=MODE, limits=limits)
        except OSError as error:
            retries.warn(log, f"{what} socket failed", path=str(path), error=str(error))
        await retries.wait()
