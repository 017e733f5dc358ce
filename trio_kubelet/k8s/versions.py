"""Which of two versions of an object is the younger one."""

from trio_kubelet.k8s.meta import ObjectMeta


def is_newer(version: ObjectMeta, known: ObjectMeta) -> bool:
    """Whether `version` is younger than `known`, of the same object or of others of its kind.

    Resource versions are numbers that grow (KEP-5504); where they are none, any other one than
    the known one counts as younger.
    """
    new, old = version.resource_version, known.resource_version
    if new.isdecimal() and old.isdecimal():
        return int(new) > int(old)
    return new != old
