"""The ports of the agent: which there are, and of which parts their endpoints are made."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.monitoring import Monitoring
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.traces import traced_routes
from trio_kubelet.debugging.disk import DiskReport, disk_routes
from trio_kubelet.errors import StartError
from trio_kubelet.eviction.report import EvictionReporter
from trio_kubelet.ports.endpoints import NodeEndpoints, PodEndpoints
from trio_kubelet.ports.listeners import Listeners
from trio_kubelet.ports.secure_port import SecurePort, SignedPair
from trio_kubelet.server import DEBUGGING_PATHS, Route, disabled_routes

if TYPE_CHECKING:  # It takes much that a node without rotation does not need.
    from trio_kubelet.node.rotation import Rotation


class Ports:
    """Steps of a start: the agent's own socket and ports, and the port for others."""

    def __init__(self, parts: NodeParts, monitoring: Monitoring) -> None:
        self._parts = parts
        self._monitoring = monitoring
        self._listeners = Listeners(
            settings=parts.settings,
            journal=parts.journal,
            loop_meter=parts.loop_meter,
            monitor=parts.monitor,
            writers=parts.writers,
            pods=parts.pods,
            monitoring=monitoring.routes(),
            of_operators=(
                *disk_routes(
                    DiskReport(
                        stats=parts.stats,
                        images=parts.image_garbage,
                        pods=parts.pods,
                        observed=parts.cache.pods,
                        writers=parts.writers,
                    )
                ),
                *EvictionReporter(
                    watch=parts.pressure,
                    stats=parts.stats,
                    pods=parts.active_pods,
                    records=parts.eviction_records,
                    writers=parts.writers,
                ).routes(),
            ),
        )

    async def serve(self) -> None:
        """Answer on the agent's socket and ports until cancelled. Raises StartError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listeners.serve_health)
            nursery.start_soon(self._listeners.serve_pods)

    async def serve_others(self, cluster: Cluster | Standalone, nursery: trio.Nursery) -> None:
        """Open the port for others, served in the nursery, if it is on. Raises StartError.

        Pods do not wait for it, but the Node object does, which tells the port.
        """
        parts = self._parts
        if not parts.settings.configuration.enable_server:
            parts.serves_others.set()
            return
        certificate = await self._serving_certificate(cluster)
        if certificate is not None:
            nursery.start_soon(certificate.run)
        port = SecurePort(
            settings=parts.settings,
            clock=parts.clock,
            node_name=parts.node_name,
            routes=self.routes(nursery),
            reviews=cluster.reviews,
            signed=SignedPair(certificate.store.current_path, certificate.unwritten_pem)
            if certificate is not None
            else None,
            watched=self._monitoring.watched,
        )
        await nursery.start(port.serve)
        parts.serves_others.set()

    async def _serving_certificate(self, cluster: Cluster | Standalone) -> "Rotation | None":
        """The certificate that the cluster signs, if it does. Raises StartError."""
        parts = self._parts
        configuration, options = parts.settings.configuration, parts.settings.options
        if not configuration.server_tls_bootstrap:
            return None
        if isinstance(cluster, Standalone):
            raise StartError(
                "serverTLSBootstrap (--rotate-server-certificates): a certificate is requested "
                "from an API server, and there is none without --kubeconfig; set it to false"
            )
        # Here, because what it takes is large, and other nodes need none of it.
        from trio_kubelet.node.certificates import SERVER, CertificateStore
        from trio_kubelet.node.serving_certificate import open_serving_certificate, serving_names

        files = (Path(configuration.tls_cert_file), Path(configuration.tls_private_key_file))
        rotation = await open_serving_certificate(
            CertificateStore(Path(options.cert_dir), SERVER),
            files if configuration.tls_cert_file else None,
            lambda: serving_names(
                cluster.node(), may_lack_addresses=parts.settings.gates["AllowDNSOnlyNodeCSR"]
            ),
            cluster.clients.main,
            parts.clock,
        )
        cluster.view.on_version.add(lambda _node: rotation.names_changed())
        self._monitoring.watch_serving_certificate(rotation)
        return rotation

    def routes(self, nursery: trio.Nursery) -> Sequence[Route]:
        """All that the port for others answers, with what it needs running in the nursery."""
        shared = self._listeners.shared_routes()
        return traced_routes((*shared, *self._debugging_routes(nursery)), self._parts.traces)

    def _debugging_routes(self, nursery: trio.Nursery) -> Sequence[Route]:
        """The endpoints that `enableDebuggingHandlers` is about."""
        parts = self._parts
        if not parts.settings.configuration.enable_debugging_handlers:
            return disabled_routes("Debug endpoints are disabled.", DEBUGGING_PATHS)
        pods = PodEndpoints(
            settings=parts.settings,
            in_force=lambda: parts.settings,
            clock=parts.clock,
            cache=parts.cache,
            runtime=parts.client,
            writers=parts.writers,
            find_pod=parts.pod,
        )
        node = NodeEndpoints(
            settings=parts.settings,
            in_force=lambda: parts.settings,
            clock=parts.clock,
            journal=parts.journal,
            loop_meter=parts.loop_meter,
            writers=parts.writers,
        )
        return (*pods.open(nursery), *node.routes())
