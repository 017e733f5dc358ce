"""Manifests for tests: good ones, and a reader and store for them."""

from pathlib import Path

from trio_kubelet.sources import Source
from trio_kubelet.sources.manifest_source import KeptManifests
from trio_kubelet.sources.manifests import ManifestReader

NODE = "node-1"


def manifest(name: str = "web", *, image: str = "busybox", more: str = "", spec: str = "") -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  {more}
spec:
  {spec}
  containers:
  - name: c
    image: {image}
"""


def reader(source: Source = Source.FILE) -> ManifestReader:
    return ManifestReader(source=source, node_name=NODE)


def kept(folder: Path, source: Source = Source.FILE) -> KeptManifests:
    return KeptManifests(folder, reader(source))
