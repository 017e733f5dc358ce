"""Logs of containers that are gone, and the links by which log collectors find logs.

A log goes with its container, but never the newest one of a name: the next restart count is read
off it. Whoever removes containers calls `remove_logs`; `tidy_logs` makes up once a minute for
what an agent had no time for, and makes links that lack. Functions that touch files block.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import structlog
from attrs import evolve, frozen

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.runtime.pod_files import log_count

log = structlog.get_logger("garbage")

YOUNG_SECONDS = 60.0
"""A link that was made so lately may still wait for its log."""


@frozen(kw_only=True)
class LogFile:
    """A log in a pod's folder: of which container, and of which of its incarnations."""

    path: Path
    container: str
    restart_count: int


def logs_to_remove(pod: ObservedPod, logs: Iterable[LogFile]) -> tuple[LogFile, ...]:
    """The logs of containers that are gone and have a successor, rotated ones included."""
    counts: dict[str, set[int]] = {}
    for container in pod.containers:
        counts.setdefault(container.name, set()).add(container.restart_count)
    return tuple(
        file
        for file in logs
        if (present := counts.get(file.container))
        and file.restart_count not in present
        and file.restart_count < max(present)
    )


@frozen(kw_only=True)
class LogLink:
    """A link to a container's log, as log collectors read it."""

    path: Path
    target: str
    age_seconds: float
    leads_somewhere: bool


def links_to_remove(
    links: Iterable[LogLink], pods: Iterable[ObservedPod], node: NodeFacts
) -> tuple[LogLink, ...]:
    """The links into the folder of our logs that lead nowhere.

    That of a container that has not exited stays: its log is away for a moment when it is
    rotated.
    """
    alive = {
        Path(_link_name(pod, container, node))
        for pod in pods
        for container in pod.containers
        if container.state is not ObservedState.EXITED
    }
    return tuple(
        link
        for link in links
        if not link.leads_somewhere
        and link.age_seconds > YOUNG_SECONDS
        and link.target.startswith(f"{node.configuration.pod_logs_dir}/")
        and link.path not in alive
    )


def links_to_make(
    links: Iterable[LogLink], pods: Iterable[ObservedPod], node: NodeFacts
) -> Mapping[Path, str]:
    """The links that containers lack, and the logs of ours that they lead to.

    An agent that was stopped right after it had started a container has made no link to its log.
    """
    present = {link.path for link in links}
    lacking: dict[Path, str] = {}
    for pod in pods:
        for container in pod.containers:
            name = _link_name(pod, container, node)
            if (
                container.state is not ObservedState.CREATED
                and container.log_path.startswith(f"{node.configuration.pod_logs_dir}/")
                and Path(name) not in present
            ):
                # The first one is the newest; names that are too long lose the id.
                lacking.setdefault(Path(name), container.log_path)
    return lacking


def with_usable_names(pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """The pods, and of each the containers, that paths can be made of: the runtime gives the names.

    What somebody else made may be called anything.
    """
    return tuple(
        evolve(
            pod,
            containers=tuple(
                each
                for each in pod.containers
                if is_path_part(each.name) and is_path_part(each.id) and "\0" not in each.log_path
            ),
        )
        for pod in pods
        if is_path_part(pod.namespace) and is_path_part(pod.name)
    )


def _link_name(pod: ObservedPod, container: ObservedContainer, node: NodeFacts) -> str:
    directory = node.container_logs_directory
    return names.container_log_symlink(_named(pod), container.name, container.id, directory)


def _named(pod: ObservedPod) -> Pod:
    return Pod(metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid))


def remove_logs(pod: ObservedPod, gone: Collection[ObservedContainer], node: NodeFacts) -> None:
    """Remove the logs of containers of a pod that were just removed, and the links to them."""
    ids = {each.id for each in gone}
    left = evolve(pod, containers=tuple(c for c in pod.containers if c.id not in ids))
    for usable in with_usable_names([left]):
        for file in logs_to_remove(usable, _read_logs(usable, node)):
            _unlink(file.path)
    for usable in with_usable_names([evolve(pod, containers=tuple(gone))]):
        for each in usable.containers:
            link = Path(_link_name(usable, each, node))
            if link.is_symlink() and not link.exists():
                _unlink(link)


def tidy_logs(
    wanted: Iterable[ObservedPod], pods: Sequence[ObservedPod], node: NodeFacts, now_ns: int
) -> tuple[str, ...]:
    """Remove logs, then the links that led to them once they are old enough; make links. Blocks.

    Returns what went wrong; a folder that cannot be read keeps none of the others.
    """
    failures: list[str] = []
    for pod in wanted:
        try:
            for file in logs_to_remove(pod, _read_logs(pod, node)):
                _unlink(file.path)
        except OSError as error:
            failures.append(str(error))
    try:
        links = tuple(_read_links(Path(node.container_logs_directory), now_ns))
        for link in links_to_remove(links, pods, node):
            _unlink(link.path)
        for path, target in links_to_make(links, pods, node).items():
            _link(path, target)
    except OSError as error:
        failures.append(str(error))
    return tuple(failures)


def _read_logs(pod: ObservedPod, node: NodeFacts) -> Iterable[LogFile]:
    folder = Path(names.pod_log_directory(_named(pod), node.configuration.pod_logs_dir))
    for container in {container.name for container in pod.containers}:
        for path in _entries(folder / container):
            if (count := log_count(path.name)) is not None:
                yield LogFile(path=path, container=container, restart_count=count)


def _read_links(folder: Path, now_ns: int) -> Iterable[LogLink]:
    for path in _entries(folder):
        try:
            age_seconds = (now_ns - path.lstat().st_mtime_ns) / 1e9
            target = str(path.readlink())
        except OSError:
            continue  # It is no link, or gone.
        yield LogLink(
            path=path, target=target, age_seconds=age_seconds, leads_somewhere=path.exists()
        )


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _link(path: Path, target: str) -> None:
    if not Path(target).exists():
        return
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.symlink_to(target)
    except FileExistsError:
        return  # Its start was still under way.
    except OSError as error:
        log.warning("container log link failed, will retry", path=str(path), error=error.strerror)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "container log link removal failed, will retry", path=str(path), error=error.strerror
        )
