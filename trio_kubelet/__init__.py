"""trio-kubelet: a Kubernetes node agent in Python on Trio.

`agent/main.py` runs the agent; every part is a package whose docstring says what it is for.
`docs/architecture.md` shows how the agent starts, and how a pod flows through the parts.
"""

__version__ = "0.1.0.dev0"
KUBERNETES_VERSION = "v1.36.3"
"""The Kubernetes release whose kubelet this agent behaves as."""

DEFAULT_ROOT = "/var/lib/kubelet"
"""The agent's folder, unless --root-dir names another."""
AGENT_SOCKET = "agent.sock"
"""The socket in that folder on which the agent answers its owner."""
