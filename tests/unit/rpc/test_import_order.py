import subprocess
import sys


def test_grpclib_sees_the_current_task_as_trio_asyncio_gives_it() -> None:
    """From Python 3.12 on, asyncio's own knows no loop of trio-asyncio's."""
    script = """
import trio_kubelet.rpc.stubs.runtime.v1
import asyncio, grpclib.utils
assert grpclib.utils._current_task is asyncio.current_task
assert asyncio.current_task.__module__.startswith("trio_asyncio")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
