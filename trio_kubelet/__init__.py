"""trio-kubelet: a Kubernetes node agent in Python on Trio.

`agent.py` builds the parts and is the only module that knows them all. Every part is a package
whose docstring says what it is for; `docs/architecture.md` shows how a pod flows through them.
"""

__version__ = "0.1.0.dev0"
KUBERNETES_VERSION = "v1.36.3"
"""The Kubernetes release whose kubelet this agent behaves as."""
