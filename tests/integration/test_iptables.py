"""The chains for others, made by a real iptables in a network namespace of its own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio

from lab import UnavailableError, tools
from lab.packages import Packages
from lab.processes import run, wait_until
from tests.missing import do_without
from trio_kubelet.node.iptables import IptablesChains, keep_chains, steps

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

DEADLINE_SECONDS = 120
PERIOD_SECONDS = 0.2
FAILED_CALLS = 5
TABLES = ("filter", "nat", "mangle")
FIREWALL = """\
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment \
--comment "block incoming localnet connections" \
-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
""".splitlines()


@contextmanager
def network_namespace() -> Iterator[str]:
    """A new one, by the path that names it."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    path = Path(f"/proc/{holder.pid}/ns/net")
    try:
        wait_until(
            lambda: path.readlink() != Path("/proc/self/ns/net").readlink(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "no namespace",
        )
        yield str(path)
    finally:
        holder.kill()
        holder.wait()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Path]:
    """A folder with iptables and ip6tables that see the rules of a namespace alone."""
    try:
        found = tools.iptables(Packages())
    except UnavailableError as reason:
        do_without(str(reason))
    if found is None:
        do_without("no iptables works with this kernel")
    with network_namespace() as namespace:
        for name in ("iptables", "ip6tables"):
            script = tmp_path / name
            real = found.with_name(name)
            script.write_text(f'#!/bin/sh\nexec nsenter --net={namespace} {real} "$@"\n')
            script.chmod(0o755)
        yield tmp_path


def rules(programs: Path, name: str, table: str) -> list[str]:
    """The chains and rules of a table, without the kernel's own chains."""
    listed = run([programs / name, "-w", "5", "-t", table, "-S"]).splitlines()
    return [each for each in listed if not each.startswith("-P")]


async def wait_for_chains(programs: Path, name: str) -> None:
    """Wait until everything of a family is there, and nothing twice."""
    await trio.to_thread.run_sync(
        partial(
            wait_until,
            lambda: [rules(programs, name, table) for table in TABLES] == expected(name),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: str([rules(programs, name, table) for table in TABLES]),
        )
    )


def expected(name: str) -> list[list[str]]:
    """The chains and rules of the tables that are not the kernel's own."""
    canary, hint = ["-N KUBE-KUBELET-CANARY"], ["-N KUBE-IPTABLES-HINT"]
    firewall = ["-N KUBE-FIREWALL", *canary, *FIREWALL] if name == "iptables" else canary
    return [firewall, canary, hint + canary]


async def test_the_chains_are_made_once_and_again_when_someone_has_flushed_them(
    programs: Path,
) -> None:
    def find(name: str) -> str:
        return str(programs / name)

    for _ in range(2):  # The second agent finds what the first one has made.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_chains, find, PERIOD_SECONDS)
            for name in ("iptables", "ip6tables"):
                await wait_for_chains(programs, name)
                for table in TABLES:
                    for word in ("-F", "-X"):
                        run([programs / name, "-w", "5", "-t", table, word])
                await wait_for_chains(programs, name)
            nursery.cancel_scope.cancel()


async def test_a_host_without_the_program_is_told_of_once() -> None:
    with structlog.testing.capture_logs() as logs:
        await keep_chains(lambda _: None)
    assert [each["event"] for each in logs] == [
        "this host has no iptables, hint chains are not made"
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec sleep 1000", "did not end within 0.5 s"),
        ("echo locked >&2; exit 4", "exit code 4: locked"),
        ("exit 1", "-N KUBE-IPTABLES-HINT: exit code 1"),
    ],
)
async def test_a_program_that_fails_is_told_of_once_and_tried_again(
    tmp_path: Path, script: str, words: str
) -> None:
    program, calls = tmp_path / "iptables", tmp_path / "calls"
    program.write_text(f"#!/bin/sh\necho >>{calls}\n{script}\n")
    program.chmod(0o755)
    family = IptablesChains(str(program), tuple(steps(ipv6=False)), 0.01, 0.5)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(family.keep)
            await trio.to_thread.run_sync(
                partial(
                    wait_until,
                    lambda: calls.exists() and calls.read_text().count("\n") >= FAILED_CALLS,
                    deadline_seconds=DEADLINE_SECONDS,
                    else_say=lambda: "it is not called again",
                )
            )
            nursery.cancel_scope.cancel()
    (told,) = logs
    assert words in told["error"]
