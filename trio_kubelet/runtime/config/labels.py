"""The labels and annotations by which sandboxes and containers are recognized later.

They are the only memory that survives the agent: after a restart the runtime's list, with
these, is what pods are put together from. The Go kubelet writes and reads the same.
"""

from trio_kubelet.k8s import Container, ContainerPort, HTTPGetAction, LifecycleHandler, Pod
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.config.container_hash import container_hash

Json = dict[str, object]


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """The pod's own labels, and who it is."""
    return {**pod.metadata.labels, **_pod_identity(pod)}


def container_labels(pod: Pod, container: Container) -> dict[str, str]:
    """Whose container it is; the pod's own labels are on its sandbox."""
    return {**_pod_identity(pod), names.CONTAINER_NAME_LABEL: container.name}


def container_annotations(pod: Pod, container: Container, restart_count: int) -> dict[str, str]:
    """The facts of a container that must be known even when its pod's spec is gone."""
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
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        handler = _handler_json(container.lifecycle.pre_stop)
        annotations[names.PRE_STOP_HANDLER_ANNOTATION] = go_json(handler)
    if container.ports:
        ports = [_port_json(port) for port in container.ports]
        annotations[names.PORTS_ANNOTATION] = go_json(ports)
    return annotations


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
