"""Where pods come from: a folder of manifests, a URL; and the merge into one stream of changes.

`watch_manifest_files` and `watch_manifest_url` are tasks that call back with the full set of their
pods; `SourceMerge` turns full sets into `PodUpdate`s.
"""

from trio_kubelet.sources.annotations import Source
from trio_kubelet.sources.documents import InvalidManifest
from trio_kubelet.sources.file import watch_manifest_files
from trio_kubelet.sources.http import watch_manifest_url
from trio_kubelet.sources.manifests import Adopt, ManifestReader
from trio_kubelet.sources.merge import PodOperation, PodUpdate, SourceMerge
from trio_kubelet.sources.static_pods import SendPods

__all__ = [
    "Adopt",
    "InvalidManifest",
    "ManifestReader",
    "PodOperation",
    "PodUpdate",
    "SendPods",
    "Source",
    "SourceMerge",
    "watch_manifest_files",
    "watch_manifest_url",
]
