"""The commands of a guide: who runs them, and running them as that person would.

A block of commands begins with ```` ```sh node ```` (as root on the node), ```` ```sh
administrator ```` or ```` ```sh example ```` (for readers only), under a heading. Variables that
a block sets are there in the later blocks of the same person.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from attrs import define, frozen

from lab import LabError
from lab.orphans import marked
from lab.processes import last_words

FENCE = re.compile(r"^```sh (?P<who>\w+)\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)
ASSIGNMENT = re.compile(r"^(\w+)=", re.MULTILINE)
COMMAND_DEADLINE_SECONDS = 300


@frozen
class Block:
    """Commands that are run in one go."""

    section: str
    who: str
    commands: str

    @property
    def assigned(self) -> tuple[str, ...]:
        """The variables that it sets at the beginnings of its lines."""
        return tuple(ASSIGNMENT.findall(self.commands))


def read_guide(text: str) -> tuple[Block, ...]:
    """List the blocks of a page in Markdown, in its order."""
    return tuple(
        Block(_section(text, found.start()), found["who"], found["commands"])
        for found in FENCE.finditer(text)
    )


def _section(text: str, position: int) -> str:
    # A line of a script that is a comment looks like a heading.
    prose = FENCE.sub(lambda found: " " * len(found[0]), text)
    return [found["title"] for found in HEADING.finditer(prose[:position])][-1]


@define
class Shell:
    """One person at a command line, in `folder`; `enter` are words to put before the shell."""

    folder: Path
    environment: Mapping[str, str]
    enter: tuple[str, ...] = ()

    def run(self, commands: str) -> str:
        """Run commands up to the first that fails, then LabError; returns what they say."""
        kept = Path(self.environment["HOME"], ".variables")
        script = f"set -eua\ncd '{self.folder}'\n{commands}\nenv -0 >'{kept}'"
        try:
            done = subprocess.run(
                [*self.enter, "sh", "-c", script],
                env=marked(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_DEADLINE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"no end of: {commands}\n{os.fsdecode(error.output or b'')}") from None
        if done.returncode != 0:
            raise LabError(f"{commands}\n{last_words(done.stdout, 20)}")
        variables = (line.partition("=") for line in kept.read_text().split("\0") if line)
        self.environment = {name: value for name, _, value in variables}
        return done.stdout
