"""Requests to a running agent: over its own socket, or, for pods, over any agent's read-only port.

Whatever goes wrong becomes one line that says what to do, and exit code 1.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import frozen

from trio_kubelet import AGENT_SOCKET, DEFAULT_ROOT

TIMEOUT_SECONDS = 10.0

Json = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


class AgentUnreachableError(click.ClickException):
    """The agent does not answer."""


@frozen(kw_only=True)
class AgentAddress:
    """The address of an agent: `url` where one is given, else the socket in its root folder."""

    root_dir: Path = Path(DEFAULT_ROOT)
    url: str = ""

    def get(self, path: str, **query: str) -> Json:
        """Get what the agent has under a path. Raises AgentUnreachableError."""
        import httpx

        try:
            with self._client() as client:
                response = client.get(path, params=query)
                response.raise_for_status()
                found: Json = response.json()
                return found
        except httpx.HTTPStatusError as error:
            words = f"{self}: {path}: {error.response.status_code} {error.response.reason_phrase}"
            raise AgentUnreachableError(words) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AgentUnreachableError(f"no agent answers at {self}: {error}") from error

    @contextmanager
    def _client(self) -> Iterator[Any]:
        import httpx

        if self.url:
            with httpx.Client(
                base_url=self.url, timeout=TIMEOUT_SECONDS, trust_env=False
            ) as client:
                yield client
            return
        with self._socket() as path:
            transport = httpx.HTTPTransport(uds=path)
            with httpx.Client(
                base_url="http://agent", timeout=TIMEOUT_SECONDS, transport=transport
            ) as client:
                yield client

    @contextmanager
    def _socket(self) -> Iterator[str]:
        """The path of the agent's socket in a few characters: an address has at most 107."""
        try:
            folder = os.open(self.root_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError as error:
            raise AgentUnreachableError(f"{self}: permission denied; try sudo") from error
        except OSError as error:
            raise self._absent() from error
        try:
            path = f"/proc/self/fd/{folder}/{AGENT_SOCKET}"
            self._try(path)
            yield path
        finally:
            os.close(folder)

    def _try(self, path: str) -> None:
        """See whether somebody listens, so that what is wrong can be said in plain words."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(TIMEOUT_SECONDS)
                probe.connect(path)
        except FileNotFoundError as error:
            raise self._absent() from error
        except PermissionError as error:
            words = f"{self}: permission denied; an agent answers its owner only: try sudo"
            raise AgentUnreachableError(words) from error
        except OSError as error:
            words = f"no agent answers at {self}: {error.strerror or error}; it may have ended"
            raise AgentUnreachableError(words) from error

    def _absent(self) -> AgentUnreachableError:
        return AgentUnreachableError(
            f"no agent runs here: there is no {self}; start one with `trio-kubelet run`, or name "
            "its --root-dir"
        )

    def __str__(self) -> str:
        return self.url or str(self.root_dir / AGENT_SOCKET)


def root_option(command: F) -> F:
    """The option that says which agent of this machine is asked."""
    root = click.option(
        "--root-dir",
        type=click.Path(path_type=Path),
        default=DEFAULT_ROOT,
        show_default=True,
        help="The agent's root folder, as its flag --root-dir names it.",
    )
    return root(command)


def url_option(command: F) -> F:
    """The option for an agent of any machine, which tells less there."""
    url = click.option("--url", default="", help="The agent's read-only port, as http://HOST:PORT.")
    return url(command)
