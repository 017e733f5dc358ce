"""Authentication and authorization: no handler is called before both have passed.

A request has a user (`authentication.py`), who wants to do something with the Node object (the
route's `Right`), which is allowed or not (`authorization.py`). `guard` stands before a handler,
so that it is never called for others.
"""

from trio_kubelet.server.access.authentication import (
    Authenticator,
    TokenReviewer,
    User,
    user_of_certificate,
)
from trio_kubelet.server.access.authorization import (
    AnswerSeconds,
    Attributes,
    Authorize,
    Webhook,
    allow_always,
    attributes_of,
    guard,
)

__all__ = [
    "AnswerSeconds",
    "Attributes",
    "Authenticator",
    "Authorize",
    "TokenReviewer",
    "User",
    "Webhook",
    "allow_always",
    "attributes_of",
    "guard",
    "user_of_certificate",
]
