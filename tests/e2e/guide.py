"""The commands of a guide: who runs them, and running them as that person would.

A block of commands begins with ```` ```sh node ```` (as root on the node), ```` ```sh
administrator ```` or ```` ```sh example ```` (for readers only), under a heading. Variables that
a block sets are there in the later blocks of the same person.
"""

import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from attrs import define, frozen

from lab import LabError
from lab.guest.guest import Guest
from lab.orphans import marked
from lab.processes import last_words

FENCE = re.compile(r"^```sh (?P<who>\w+)\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)
ASSIGNMENT = re.compile(r"^(\w+)=", re.MULTILINE)
# The longest installs the agent, on a machine with a share of a processor. Less than a test may
# take, so that the test fails with what the command wrote.
COMMAND_DEADLINE_SECONDS = 300
KEPT = ".variables"
CHECKOUT = "/src"


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
class Person(ABC):
    """Somebody at a command line, whose variables are there from one block to the next."""

    environment: Mapping[str, str]

    @abstractmethod
    def run(self, commands: str) -> str:
        """Run commands up to the first that fails, then LabError; returns what they say."""

    def learn(self, **variables: str) -> None:
        """Set variables."""
        self.environment = {**self.environment, **variables}

    @staticmethod
    def script(folder: str, commands: str, kept: str) -> str:
        """Runs commands in a folder, then writes all variables to the file `kept`."""
        return f"set -eua\ncd '{folder}'\n{commands}\nenv -0 >'{kept}'"

    def keep(self, variables: str) -> None:
        """Remember what such a file has."""
        lines = (line.partition("=") for line in variables.split("\0") if line)
        self.environment = {name: value for name, _, value in lines}


@define
class Administrator(Person):
    """One here, whose commands run in `folder`."""

    folder: Path

    def run(self, commands: str) -> str:
        kept = Path(self.environment["HOME"], KEPT)
        try:
            done = subprocess.run(
                ["sh", "-c", self.script(str(self.folder), commands, str(kept))],
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
        self.keep(kept.read_text())
        return done.stdout


@define
class RootOnNode(Person):
    """Root on a machine of the lab, at the top of a checkout."""

    guest: Guest

    def run(self, commands: str) -> str:
        kept = f"/root/{KEPT}"
        said = self.guest.run(
            *("sh", "-c", self.script(CHECKOUT, commands, kept)),
            environment=self.environment,
            deadline_seconds=COMMAND_DEADLINE_SECONDS,
        )
        self.keep(self.guest.read(kept).decode())
        return said
