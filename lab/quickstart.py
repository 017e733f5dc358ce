"""`quickstart.sh`: real pods on this machine, from nothing, and nothing left of them at the end.

A private containerd and the agent run in a temporary folder, fed with the manifests of examples/.
What the agent says of its pods is shown until all are at work, then until Ctrl-C. Where no
container can run, or with `--hollow`, the agent's own runtime without a kernel takes containerd's
place and the rest is the same.
"""

import argparse
import http.client
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab import LabError, host, pods_shown
from lab.agent import LabAgent
from lab.containerd import Containerd

EXAMPLES = Path(__file__).parent.parent / "examples"
NODE = "quickstart"
# Pods that serve a page on port 80.
SERVERS = ("web", "greeting")
LOOK_SECONDS = 0.25
AT_WORK_DEADLINE_SECONDS = 120
EVENTS_SHOWN = 8

Pods = Mapping[str, Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when all pods were at work, 1 after a line that says what went wrong."""
    options = _options(argv)
    obstacles = host.obstacles()
    if obstacles and not options.hollow:
        say(f"{'; '.join(obstacles)}: showing the pods on the hollow runtime instead")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="trio-kubelet-"))
    try:
        _show(folder, hollow=options.hollow or bool(obstacles), once=options.once)
    except LabError as error:
        say(f"{error}")
        say(f"logs are left in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    say("all of it is gone again")
    return 0


def say(text: str) -> None:
    """Tell the person in front of the screen."""
    print(f"quickstart: {text}", flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart.sh", description=__doc__)
    parser.add_argument(
        "--hollow", action="store_true", help="run on the runtime without a kernel; needs no root"
    )
    parser.add_argument("--once", action="store_true", help="end as soon as all pods are at work")
    return parser.parse_args(argv)


def _show(folder: Path, *, hollow: bool, once: bool) -> None:
    """Start everything, show it until it is time to end, and take it down. Raises LabError."""
    with ExitStack() as stack:
        try:
            agent = _start(stack, folder, hollow=hollow)
            pods = _watch_until_at_work(agent)
            _fetch_pages(pods, hollow=hollow)
            if not once:
                _watch_until_interrupted(agent)
        except KeyboardInterrupt:
            print()
        finally:
            _hold_off_interrupts()
            say("stopping the pods and everything else")


def _start(stack: ExitStack, folder: Path, *, hollow: bool) -> LabAgent:
    if hollow:
        say("the hollow runtime plays the containers: no kernel, no root, no network of pods")
        agent = LabAgent(folder / "agent", flags=(f"--hostname-override={NODE}",))
    else:
        say("fetching what is not here yet: containerd, runc, CNI plugins, busybox")
        containerd = stack.enter_context(Containerd("default", folder))
        say(f"containerd {containerd.tools.version} runs, private to {folder}")
        agent = LabAgent(
            folder / "agent",
            endpoint=containerd.endpoint,
            cgroup_root=containerd.cgroup_root,
            flags=(f"--hostname-override={NODE}",),
        )
    shutil.copytree(EXAMPLES, agent.manifests)
    stack.callback(agent.stop)  # Also if it is interrupted while it starts.
    stack.enter_context(agent)
    say(f"the agent runs, process {agent.pid}; it reads manifests from {agent.manifests}")
    return agent


def _hold_off_interrupts() -> None:
    """From here on it is tidied up; what is started a second time would only do half of it."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)


def _watch_until_at_work(agent: LabAgent) -> Pods:
    """Show the pods until each is at work; LabError at the deadline."""
    expected = len(list(EXAMPLES.glob("*.yaml")))
    end = time.monotonic() + AT_WORK_DEADLINE_SECONDS
    with Screen(agent) as screen:
        while True:
            pods = screen.look()
            at_work = [pod for pod in pods.values() if pods_shown.is_at_work(pod)]
            if len(at_work) >= expected:
                return pods
            if time.monotonic() > end:
                raise LabError(f"not all pods came to work: {agent.last_words()}")
            time.sleep(LOOK_SECONDS)


def _watch_until_interrupted(agent: LabAgent) -> None:
    say(f"change, add or remove files in {agent.manifests} and see; Ctrl-C ends it all")
    with Screen(agent) as screen:
        while True:
            screen.look()
            time.sleep(LOOK_SECONDS)


def _fetch_pages(pods: Pods, *, hollow: bool) -> None:
    if hollow:
        say("no page is fetched: hollow pods have addresses, but nothing listens there")
        return
    for name in SERVERS:
        address = pods[f"{name}-{NODE}"]["status"]["podIP"]
        try:
            # No proxy of the environment is to see what goes to a pod.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{address}/", timeout=10) as answer:
                page = answer.read().decode()
        except OSError as error:
            raise LabError(f"the pod {name} does not serve its page: {error}") from error
        say(f"http://{address}/ serves {len(page)} bytes: {_in_a_line(page)}")


def _in_a_line(page: str) -> str:
    lines = (line.strip() for line in page.splitlines())
    heading = (line for line in lines if line and not line.startswith(("<!", "<title")))
    return next(heading, "").replace("<h1>", "").replace("</h1>", "")


class Screen:
    """The pods on the screen: a live table on a terminal, a line for each change elsewhere."""

    def __init__(self, agent: LabAgent) -> None:
        self._agent = agent
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def look(self) -> Pods:
        """Ask the agent, show what it says, and return its pods. Raises LabError if it is gone."""
        try:
            pods = self._agent.pods()
            journal = self._agent.ask("/debug/journal")["entries"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LabError(f"the agent answers no more: {self._agent.last_words()}") from error
        table = pods_shown.rows(pods.values(), datetime.now(UTC))
        if self._console.is_terminal:
            lines = list(pods_shown.events(journal))[-EVENTS_SHOWN:]
            self._live.update(_rendered(table, lines), refresh=True)
        else:
            self._tell_changes(table)
        return pods

    def _tell_changes(self, table: Sequence[pods_shown.ShownPod]) -> None:
        for row in table:
            state = f"{row.name}  {row.ready}  {row.status}  restarts {row.restarts}  {row.ip}"
            if self._told.get(row.name) != state:
                self._told[row.name] = state
                say(state)


def _rendered(table: Sequence[pods_shown.ShownPod], events: Sequence[str]) -> Group:
    shown = Table("POD", "READY", "STATUS", "RESTARTS", "IP", "AGE", box=None, padding=(0, 3, 0, 0))
    for row in table:
        colour = "green" if row.status == "Running" else "yellow"
        status = Text(row.status, style=colour)
        shown.add_row(row.name, row.ready, status, str(row.restarts), row.ip, row.age)
    recent = (Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in events)
    return Group(Text(), shown, Text(), *recent, Text())


if __name__ == "__main__":
    sys.exit(main())
