"""The client's identity: the headers of a request, and what to do when they are refused."""

from typing import Protocol, TypeAlias

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Headers of a request; a name may come more than once."""


class CredentialError(Exception):
    """There are no credentials to be had: a file or a plugin failed. The text says which."""


class Credentials(Protocol):
    """The source of a client's headers."""

    async def headers(self) -> Headers:
        """Return the headers that go with each request; raises CredentialError."""
        ...

    async def renew(self, refused: Headers) -> bool:
        """After a 401 for these headers: say whether there are other credentials to try now."""
        ...


class _NoCredentials:
    __slots__ = ()

    async def headers(self) -> Headers:
        return ()

    async def renew(self, refused: Headers) -> bool:  # noqa: ARG002
        return False


NO_CREDENTIALS: Credentials = _NoCredentials()
"""Those of somebody who says nothing: what a client certificate or a test needs."""
