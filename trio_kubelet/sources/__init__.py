"""The sources of pods: the API server, a folder of manifests, a URL; and the merge of them.

`watch_manifest_files` and `watch_manifest_url` are tasks that call back with the full set of their
pods; `SourceMerge` turns full sets, and changes of single pods, into `PodUpdate`s. `watch_api_pods`
sends these itself. `MirrorPods` shows static pods in the API.
"""

from trio_kubelet.pod_source import Source
from trio_kubelet.sources.apiserver import watch_api_pods
from trio_kubelet.sources.manifest_source import ManifestContext
from trio_kubelet.sources.manifest_watch import watch_manifest_files, watch_manifest_url
from trio_kubelet.sources.merge import PodOperation, PodUpdate, PodUpdates, SourceMerge

__all__ = [
    "ManifestContext",
    "PodOperation",
    "PodUpdate",
    "PodUpdates",
    "Source",
    "SourceMerge",
    "watch_api_pods",
    "watch_manifest_files",
    "watch_manifest_url",
]
