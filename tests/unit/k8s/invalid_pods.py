"""Builds pods that are valid but for what a test changes in them."""

from typing import Any

import yaml

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.validation import validate_pod

BASE = """
metadata: {name: pod, namespace: default, uid: u}
spec:
  serviceAccountName: builder
  containers: [{name: app, image: example.com/app:1}]
  volumes:
    - {name: data, emptyDir: {}}
    - {name: disk, persistentVolumeClaim: {claimName: disk}}
    - {name: picture, image: {reference: example.com/picture:1}}
"""


def pod_with(**changes: str) -> Pod:
    """A pod with parts replaced: `spec` and `metadata` are merged into the base one.

    `container` changes its one container, `init` and `ephemeral` add one of their kind.
    """
    data: dict[str, Any] = yaml.safe_load(BASE)
    for part in ("metadata", "spec"):
        data[part].update(yaml.safe_load(changes.pop(part, "{}")))
    if "container" in changes:
        data["spec"]["containers"][0].update(yaml.safe_load(changes.pop("container")))
    for kind in ("init", "ephemeral"):
        if kind in changes:
            container = {"name": kind, "image": "busybox", **yaml.safe_load(changes.pop(kind))}
            data["spec"][f"{kind}Containers"] = [container]
    assert not changes
    return with_defaults(decode(Pod, data))


def errors_of(**changes: str) -> list[str]:
    """What validation says of such a pod."""
    return [str(error) for error in validate_pod(pod_with(**changes), is_new=False)]


def first_words(errors: list[str]) -> list[str]:
    """The errors up to their explanation: `path: Kind: value`."""
    return [": ".join(error.split(": ")[:3]) for error in errors]
