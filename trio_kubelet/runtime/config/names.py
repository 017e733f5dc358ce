"""The names of a pod's things: labels and annotations, folders, logs, in full.

Other kubelets, log collectors and people find a pod's things by these names; none may change.
"""

from pathlib import PurePosixPath

from trio_kubelet.k8s import Pod

POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"

HASH_ANNOTATION = "io.kubernetes.container.hash"
RESTART_COUNT_ANNOTATION = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH_ANNOTATION = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY_ANNOTATION = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP_HANDLER_ANNOTATION = "io.kubernetes.container.preStopHandler"
PORTS_ANNOTATION = "io.kubernetes.container.ports"
TERMINATION_GRACE_PERIOD_ANNOTATION = "io.kubernetes.pod.terminationGracePeriod"
DELETION_GRACE_PERIOD_ANNOTATION = "io.kubernetes.pod.deletionGracePeriod"

CONTAINER_LOGS_DIRECTORY = "/var/log/containers"
_MAX_FILE_NAME_LENGTH = 255
_LOG_SUFFIX = ".log"


def pod_full_name(pod: Pod) -> str:
    """`<name>_<namespace>(<uid>)`, as events and errors call a pod."""
    meta = pod.metadata
    return f"{meta.name}_{meta.namespace}({meta.uid})"


def pod_log_directory(pod: Pod, pod_logs_directory: str) -> str:
    """The folder of all logs of a pod, below the setting podLogsDir."""
    meta = pod.metadata
    return f"{pod_logs_directory}/{pod_log_folder(meta.namespace, meta.name, meta.uid)}"


def pod_log_folder(namespace: str, name: str, uid: str) -> str:
    """The name of the folder of all logs of a pod."""
    return f"{namespace}_{name}_{uid}"


def container_log_directory(pod: Pod, container_name: str, pod_logs_directory: str) -> str:
    """The folder of the logs of one container; it must exist before the container is made."""
    return f"{pod_log_directory(pod, pod_logs_directory)}/{container_name}"


def container_log_path(container_name: str, restart_count: int) -> str:
    """A container's log, relative to the pod's log folder, as CRI wants it."""
    return f"{container_name}/{restart_count}{_LOG_SUFFIX}"


def container_log_symlink(
    pod: Pod, container_name: str, container_id: str, directory: str = CONTAINER_LOGS_DIRECTORY
) -> str:
    """The link to a container's log by which log collectors find it.

    A name too long for a file is cut, and the container's id with it.
    """
    name = f"{pod.metadata.name}_{pod.metadata.namespace}_{container_name}-{container_id}"
    return f"{directory}/{name[: _MAX_FILE_NAME_LENGTH - len(_LOG_SUFFIX)]}{_LOG_SUFFIX}"


def pod_directory(root_directory: str, uid: str) -> str:
    """The folder of what a pod keeps on the node."""
    return f"{root_directory}/pods/{uid}"


def etc_hosts_path(root_directory: str, uid: str) -> str:
    """The hosts file that is mounted into the containers of a pod."""
    return f"{pod_directory(root_directory, uid)}/etc-hosts"


def container_directory(root_directory: str, uid: str, container_name: str) -> str:
    """The folder of what a container keeps on the node: its termination messages."""
    return f"{pod_directory(root_directory, uid)}/containers/{container_name}"


def termination_message_file(
    root_directory: str, uid: str, container_name: str, random_32_bits: int
) -> str:
    """The file (mode 0666) behind one container's termination message path.

    The random number keeps the incarnations of a container apart.
    """
    directory = container_directory(root_directory, uid, container_name)
    return str(PurePosixPath(directory, f"{random_32_bits:08x}"))
