"""The client of the API server: requests, and list-and-watch that loses nothing.

Parts take an `Api` and call `reflect` for what they follow; both raise and hide what the network
does: `ApiError` is the one exception, and a reflection goes on whatever breaks.
"""

from trio_kubelet.k8s.client.api import (
    Api,
    Frame,
    FrameType,
    ListPage,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    PatchType,
    Selection,
    UndecodableObject,
    WatchEvent,
    metadata_of,
)
from trio_kubelet.k8s.client.client import ApiClient
from trio_kubelet.k8s.client.errors import ApiError
from trio_kubelet.k8s.client.family import ApiClients, ClientLimits, open_api_clients
from trio_kubelet.k8s.client.kubeconfig import Kubeconfig, KubeconfigError, read_kubeconfig
from trio_kubelet.k8s.client.rate_limit import RateLimit
from trio_kubelet.k8s.client.reflector import reflect

__all__ = [
    "Api",
    "ApiClient",
    "ApiClients",
    "ApiError",
    "ClientLimits",
    "Frame",
    "FrameType",
    "Kubeconfig",
    "KubeconfigError",
    "ListPage",
    "ListSynced",
    "ObjectChanged",
    "ObjectRemoved",
    "PatchType",
    "RateLimit",
    "Selection",
    "UndecodableObject",
    "WatchEvent",
    "metadata_of",
    "open_api_clients",
    "read_kubeconfig",
    "reflect",
]
