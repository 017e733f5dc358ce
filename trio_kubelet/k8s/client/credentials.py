"""Who the client says it is: the headers of a request, and what to do when they are refused."""

from collections.abc import Mapping
from typing import Protocol


class CredentialError(Exception):
    """There are no credentials to be had: a file or a plugin failed. The text says which."""


class Credentials(Protocol):
    """Where a client has its headers from."""

    async def headers(self) -> Mapping[str, str]:
        """Return the headers that go with each request; raises CredentialError."""
        ...

    async def renew(self, refused: Mapping[str, str]) -> bool:
        """After a 401 for these headers: say whether there are other credentials to try now."""
        ...


class _NoCredentials:
    __slots__ = ()

    async def headers(self) -> Mapping[str, str]:
        return {}

    async def renew(self, refused: Mapping[str, str]) -> bool:  # noqa: ARG002
        return False


NO_CREDENTIALS: Credentials = _NoCredentials()
"""Those of somebody who says nothing: what a client certificate or a test needs."""
