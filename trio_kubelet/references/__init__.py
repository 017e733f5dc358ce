"""Objects of the API that pods here refer to, kept at hand while a pod uses them.

`References` is all that others need: config maps, secrets, tokens and trust bundles for volumes,
what variables are made of, the secrets to pull images with.
"""

from trio_kubelet.references.object_references import ObjectError, ObjectNotFoundError
from trio_kubelet.references.references import (
    EnvironmentData,
    NoReferences,
    PullSecrets,
    References,
)

__all__ = [
    "EnvironmentData",
    "NoReferences",
    "ObjectError",
    "ObjectNotFoundError",
    "PullSecrets",
    "References",
]
