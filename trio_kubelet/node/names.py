"""The node's name. It is that of the Node object, of its lease, and of its user in the cluster."""

import socket

from trio_kubelet.config.settings import Settings


def node_name(settings: Settings) -> str:
    """The node's name: --hostname-override, else the host's, in lower case."""
    name = settings.options.hostname_override or socket.gethostname()
    return name.strip().lower()
