"""Who may do what on a node: what the API server answers to reviews."""

from collections.abc import Mapping
from typing import Any

from attrs import define, field

Data = dict[str, Any]


@define
class Reviews:
    """Tokens and whose they are; rights as `(user, verb, subresource)`, on any node."""

    users: dict[str, Mapping[str, Any]] = field(factory=dict)
    rights: set[tuple[str, str, str]] = field(factory=set)

    def answer(self, resource: str, review: Data) -> Data:
        """A review with its answer."""
        spec = review["spec"]
        if resource == "tokenreviews":
            user = self.users.get(spec["token"])
            return {**review, "status": {"user": user, "authenticated": True} if user else {}}
        asked = spec["resourceAttributes"]
        assert (asked["resource"], asked["version"]) == ("nodes", "v1")
        wanted = (spec["user"], asked["verb"], asked.get("subresource", ""))
        return {**review, "status": {"allowed": wanted in self.rights}}
