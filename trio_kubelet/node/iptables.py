"""Chains of iptables that others look for on a node, and one rule (makeIPTablesUtilChains).

By KUBE-IPTABLES-HINT (KEP-3178) programs in containers find out whether the host's iptables is the
legacy or the nft one. KUBE-FIREWALL drops what comes from elsewhere for 127.0.0.0/8: kube-proxy and
CNI plugins allow such packets for their own sake (route_localnet), and IPv6 has none. The host's
own program makes them, as only it knows where the host has its rules.

Who reloads a firewall flushes all of that, one table after another. Then the chains
KUBE-KUBELET-CANARY have gone, for which one look a minute is enough; only then what is missing is
made anew.
"""

import shutil
from collections.abc import Callable, Iterator

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.tasks.threads import thread_wanted

log = structlog.get_logger("iptables")

HINT, CANARY, FIREWALL = "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-FIREWALL"

PERIOD_SECONDS = 60.0
DEADLINE_SECONDS = 30.0
LOCK_SECONDS = 5
"""The time that the program waits for others that change rules."""

MOST_ROUNDS = 3

_MISSING = 1
"""The exit code for a chain or a rule that is not there; others are errors."""

_SHOWN_CHARACTERS = 300

_FROM_ELSEWHERE = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("!", "-s", "127.0.0.0/8", "-d", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT"),
    *("-j", "DROP"),
)


class IptablesError(Exception):
    """The program cannot be run, fails, or does not end."""


@frozen
class ChainStep:
    """A command that makes a chain or a rule, and the one that says whether it is there."""

    table: str
    make: tuple[str, ...]
    check: tuple[str, ...]


def steps(*, ipv6: bool) -> Iterator[ChainStep]:
    """The chains and rules of a family in the order in which they are made."""
    yield _chain("mangle", HINT)
    if not ipv6:
        yield _chain("filter", FIREWALL)
        for hook in ("OUTPUT", "INPUT"):
            jump = (hook, "-j", FIREWALL)
            yield ChainStep("filter", ("-I", *jump), ("-C", *jump))
        drop = (FIREWALL, *_FROM_ELSEWHERE)
        yield ChainStep("filter", ("-A", *drop), ("-C", *drop))
    # They are looked for later, and say that all the others were made.
    for table in ("filter", "nat", "mangle"):
        yield _chain(table, CANARY)


def _chain(table: str, name: str) -> ChainStep:
    return ChainStep(table, ("-N", name), ("-S", name))


async def keep_chains(
    find: Callable[[str], str | None] = shutil.which, period_seconds: float = PERIOD_SECONDS
) -> None:
    """Make the chains of IPv4 and IPv6 and keep them until cancelled; what was made stays.

    `find` says where a program is. Returns at once if the host has none.
    """
    found = {name: find(name) for name in ("iptables", "ip6tables")}
    if not any(found.values()):
        log.info("this host has no iptables, hint chains are not made")
        return
    async with trio.open_nursery() as nursery:
        for name, path in found.items():
            if path is not None:
                family = IptablesChains(
                    path, tuple(steps(ipv6=name == "ip6tables")), period_seconds
                )
                nursery.start_soon(family.keep)


@define(eq=False)
class IptablesChains:
    """The chains of one program (absolute path)."""

    _program: str
    _steps: tuple[ChainStep, ...]
    _period_seconds: float = PERIOD_SECONDS
    _deadline_seconds: float = DEADLINE_SECONDS
    _is_made: bool = field(init=False, default=False)
    _problem: str = field(init=False, default="")

    async def keep(self) -> None:
        """Make what is missing at the start, and whenever the canary has gone; for ever."""
        while True:
            try:
                if not self._is_made or not await self._has_canaries():
                    await self._make_all()
            except IptablesError as error:
                self._tell(str(error))
            await trio.sleep(self._period_seconds)

    async def _make_all(self) -> None:
        self._is_made = False
        for _ in range(MOST_ROUNDS):
            if not await self._make_missing():
                break
        self._is_made, self._problem = True, ""
        log.info("iptables chains made", program=self._program)

    async def _make_missing(self) -> bool:
        """True if something was missing: a flush may be under way, which takes more of it."""
        missing = False
        for step in self._steps:
            if await self._is_there(step):
                continue
            missing = True
            code, said = await self._run(step.table, step.make)
            if code != 0:
                raise IptablesError(f"{' '.join(step.make)}: exit code {code}: {said}")
        return missing

    async def _has_canaries(self) -> bool:
        for step in self._steps:
            if CANARY in step.make and not await self._is_there(step):
                return False
        return True

    async def _is_there(self, step: ChainStep) -> bool:
        code, said = await self._run(step.table, step.check)
        if code not in (0, _MISSING):
            raise IptablesError(f"exit code {code}: {said}")
        return code == 0

    async def _run(self, table: str, words: tuple[str, ...]) -> tuple[int, str]:
        """The exit code, and what the program said of its failure."""
        command = (self._program, "-w", f"{LOCK_SECONDS}", "-t", table, *words)
        try:
            with trio.fail_after(self._deadline_seconds), thread_wanted():
                done = await trio.run_process(
                    command, capture_stdout=True, capture_stderr=True, check=False
                )
        except OSError as error:
            raise IptablesError(f"cannot be run: {error.strerror or error}") from error
        except trio.TooSlowError as error:
            raise IptablesError(f"did not end within {self._deadline_seconds:g} s") from error
        said = done.stderr.decode(errors="replace").strip()
        return done.returncode, said[-_SHOWN_CHARACTERS:]

    def _tell(self, problem: str) -> None:
        """Warn of a problem once, until it is another one."""
        if problem != self._problem:
            log.warning(
                "iptables chains cannot be made, will retry", program=self._program, error=problem
            )
        self._problem = problem
