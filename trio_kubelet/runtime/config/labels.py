"""The labels and annotations by which sandboxes and containers are recognized later.

They are the only memory that survives the agent: after a restart the runtime's list, with
these, is what pods are put together from. The Go kubelet writes and reads the same.

A runtime sends no list of more than 16 MiB, and a node whose lists fail is not ready. So what a
pod's author adds to an entry of them is bounded: 32 KiB for each pod's sandbox and as much for its
containers together leave room for 250 pods.
"""

from collections.abc import Mapping

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Container, ContainerPort, HTTPGetAction, LifecycleHandler, Pod
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.config.container_hash import container_hash

Json = dict[str, object]

MOST_LABELS_BYTES = 16 << 10
"""Of a pod's own labels on its sandbox, and once more of its annotations there."""

MOST_RECORDS_BYTES = 32 << 10
"""Of the hooks and ports that are written down with the containers of a pod, in equal shares."""

MANY_LABELS = 1000
"""As many, with annotations, take some milliseconds to be fitted."""

MOST_PATH_BYTES = 1024
"""Of a termination message path, which is written down with each container."""

LEFT_OUT_NAMED = 3


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """The pod's own labels, as far as they fit, and who it is."""
    return {**_fitting(pod.metadata.labels), **_pod_identity(pod)}


def sandbox_annotations(pod: Pod) -> dict[str, str]:
    """The pod's own annotations, as far as they fit."""
    return _fitting(pod.metadata.annotations)


def left_out_of_sandbox(pod: Pod) -> str:
    """The labels and annotations that the runtime is not told of, for an event; mostly empty."""
    meta = pod.metadata
    names = [
        *(f'label "{name}"' for name in meta.labels.keys() - _fitting(meta.labels).keys()),
        *(f'annotation "{name}"' for name in meta.annotations.keys() - sandbox_annotations(pod)),
    ]
    if not names:
        return ""
    more = len(names) - LEFT_OUT_NAMED
    listed = ", ".join(sorted(names)[:LEFT_OUT_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"The container runtime is not told of {listed}: labels, and annotations, must have at "
        f"most {MOST_LABELS_BYTES} bytes together"
    )


def _fitting(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries that have the room together, the shortest of them if not all."""
    sizes = {name: len(name.encode()) + len(value.encode()) for name, value in entries.items()}
    if sum(sizes.values()) <= MOST_LABELS_BYTES:
        return dict(entries)
    kept: set[str] = set()
    left = MOST_LABELS_BYTES
    for name, size in sorted(sizes.items(), key=lambda item: item[1]):
        left -= size
        if left < 0:
            break
        kept.add(name)
    return {name: value for name, value in entries.items() if name in kept}


def container_labels(pod: Pod, container: Container) -> dict[str, str]:
    """Labels that name a container and its pod; the pod's own labels are on its sandbox."""
    return {**_pod_identity(pod), names.CONTAINER_NAME_LABEL: container.name}


def container_annotations(pod: Pod, container: Container, restart_count: int) -> dict[str, str]:
    """The facts of a container that must be known even when its pod's spec is gone.

    The hook and the ports are for other kubelets; they are left out where they are long. Raises
    ConfigError for a termination message path that is.
    """
    if len(container.termination_message_path.encode()) > MOST_PATH_BYTES:
        raise ConfigError(
            f'terminationMessagePath of container "{container.name}" is too long: must have at '
            f"most {MOST_PATH_BYTES} bytes"
        )
    annotations = {
        names.HASH_ANNOTATION: container_hash(container),
        names.RESTART_COUNT_ANNOTATION: str(restart_count),
        names.TERMINATION_MESSAGE_PATH_ANNOTATION: container.termination_message_path,
        names.TERMINATION_MESSAGE_POLICY_ANNOTATION: container.termination_message_policy,
    }
    deletion_grace = pod.metadata.deletion_grace_period_seconds
    if deletion_grace is not None:
        annotations[names.DELETION_GRACE_PERIOD_ANNOTATION] = str(deletion_grace)
    termination_grace = pod.spec.termination_grace_period_seconds
    if termination_grace is not None:
        annotations[names.TERMINATION_GRACE_PERIOD_ANNOTATION] = str(termination_grace)
    records: dict[str, str] = {}
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        handler = _handler_json(container.lifecycle.pre_stop)
        records[names.PRE_STOP_HANDLER_ANNOTATION] = go_json(handler)
    if container.ports:
        ports = [_port_json(port) for port in container.ports]
        records[names.PORTS_ANNOTATION] = go_json(ports)
    return {**annotations, **_short(records, _record_bytes(pod))}


def _record_bytes(pod: Pod) -> int:
    """The room of one record of a container."""
    spec = pod.spec
    containers = len(spec.init_containers) + len(spec.containers) + len(spec.ephemeral_containers)
    return MOST_RECORDS_BYTES // 2 // max(1, containers)


def _short(records: Mapping[str, str], most_bytes: int) -> dict[str, str]:
    return {name: text for name, text in records.items() if len(text.encode()) <= most_bytes}


def _pod_identity(pod: Pod) -> dict[str, str]:
    return {
        names.POD_NAME_LABEL: pod.metadata.name,
        names.POD_NAMESPACE_LABEL: pod.metadata.namespace,
        names.POD_UID_LABEL: pod.metadata.uid,
    }


def _set(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value}


# The order of the fields is the API's, not ours: the text must be the same, byte for byte.


def _port_json(port: ContainerPort) -> Json:
    return {
        **_set({"name": port.name, "hostPort": port.host_port}),
        "containerPort": port.container_port,
        **_set({"protocol": port.protocol, "hostIP": port.host_ip}),
    }


def _handler_json(handler: LifecycleHandler) -> Json:
    actions: Json = {}
    if handler.exec is not None:
        actions["exec"] = _set({"command": list(handler.exec.command)})
    if handler.http_get is not None:
        actions["httpGet"] = _http_get_json(handler.http_get)
    if handler.tcp_socket is not None:
        port, host = handler.tcp_socket.port.value, handler.tcp_socket.host
        actions["tcpSocket"] = {"port": port, **_set({"host": host})}
    if handler.sleep is not None:
        actions["sleep"] = {"seconds": handler.sleep.seconds}
    return actions


def _http_get_json(action: HTTPGetAction) -> Json:
    headers = [{"name": header.name, "value": header.value} for header in action.http_headers]
    return {
        **_set({"path": action.path}),
        "port": action.port.value,
        **_set({"host": action.host, "scheme": action.scheme, "httpHeaders": headers}),
    }
