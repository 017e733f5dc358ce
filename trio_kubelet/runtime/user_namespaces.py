"""User namespaces of pods (KEP-127): which range of ids each pod with `hostUsers: false` has.

Ranges are of one length and never overlap. What a pod was given is in the file `userns` in its
folder, in the Go kubelet's form, and lasts as long as the folder, over a restart of the agent and a
change of agents. Where that file cannot be understood, the runtime says what the pod's sandbox has,
and until it has said so nobody is given a range. The ids come from the subordinate ids of the user
`kubelet`, or, where there are none, from all that are above those of the host.
"""

import json
import pwd
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.whole_files import sync_folder, write_whole
from trio_kubelet.rpc import RpcError, unless_gone
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import POD_UID_LABEL, pod_directory
from trio_kubelet.runtime.config.security import NO_USER_NAMESPACE, IdMapping
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.tasks.threads import run_in_thread, thread_wanted

log = structlog.get_logger("runtime")

IDS_PER_POD = 65536
FILE_NAME = "userns"
_LAST_ID = 2**32 - 1
"""No id: the kernel takes it for "none", and maps no range that has it."""
_USER = "kubelet"
_SUBORDINATE = re.compile(r"\d+:\s+\S+\s+(\d{1,10})\s+(\d{1,10})\n?", re.ASCII)
_SECONDS = 10.0

CANNOT = "can't set `spec.hostUsers: false`"


@frozen(kw_only=True)
class IdPool:
    """The ids that pods are given ranges of: `length` of them from `first`, in steps."""

    first: int
    length: int
    ids_per_pod: int = IDS_PER_POD

    def starts(self) -> range:
        """The first id of each range, lowest first."""
        end = min(self.first + self.length, _LAST_ID) - self.ids_per_pod + 1
        return range(self.first, end, self.ids_per_pod)


def id_pool(subordinate: tuple[int, int] | None, *, ids_per_pod: int, max_pods: int) -> IdPool:
    """The pool of a node, out of the first and the number of its subordinate ids, if it has any.

    Raises ValueError where no range for each pod can be had of them, as the Go kubelet says it.
    """
    first, length = subordinate or (ids_per_pod, 2**32 - ids_per_pod)
    if first % ids_per_pod:
        raise ValueError(f"kubelet user assigned ID {first} is not a multiple of {ids_per_pod}")
    if first < ids_per_pod:
        raise ValueError(
            f"kubelet user assigned ID {first} must be greater or equal to {ids_per_pod}"
        )
    if length % ids_per_pod:
        raise ValueError(
            f"kubelet user assigned IDs length {length} is not a multiple of {ids_per_pod}"
        )
    if length // ids_per_pod < max_pods:
        raise ValueError(f"kubelet user assigned IDs are not enough to support {max_pods} pods")
    return IdPool(first=first, length=length, ids_per_pod=ids_per_pod)


def subordinate_ids(users: str, groups: str) -> tuple[int, int]:
    """The first and the number of ids that `getsubids` tells, of users and of groups alike.

    Raises ValueError for anything but one range, the same of both.
    """
    if users != groups:
        raise ValueError(f'mismatched subuids and subgids for user "{_USER}"')
    found = _SUBORDINATE.fullmatch(users)
    if found is None:
        raise ValueError(f"error parsing {users!r} of getsubids: it must be one line with a range")
    return int(found[1]), int(found[2])


async def read_subordinate_ids(limiter: trio.CapacityLimiter) -> tuple[int, int] | None:
    """Ask getsubids; None where there is no such program or no user of that name.

    Raises ValueError for what it says, and where it fails. Users are looked up in a thread.
    """
    program = shutil.which("getsubids")
    if program is None or not await run_in_thread(_user_exists, limiter=limiter):
        return None
    return subordinate_ids(await _getsubids(program, _USER), await _getsubids(program, "-g", _USER))


async def _getsubids(*command: str) -> str:
    try:
        with trio.fail_after(_SECONDS), thread_wanted():
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = str(error)
    except trio.TooSlowError:
        why = f"it did not end within {_SECONDS} s"
    else:
        return done.stdout.decode(errors="replace")
    raise ValueError(f'error retrieving additional ids for user "{_USER}": {why}')


def _user_exists() -> bool:
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        return False
    return True


def printed(mapping: IdMapping) -> str:
    """The content of the file `userns`."""
    ids = {
        "hostId": mapping.host_id,
        "containerId": mapping.container_id,
        "length": mapping.length,
    }
    return json.dumps({"uidMappings": [ids], "gidMappings": [ids]}, separators=(",", ":"))


def parsed(text: str) -> IdMapping:
    """The range that a file `userns` tells. Raises ValueError for what no kubelet writes."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is no object")
    users, groups = (_range(document.get(name)) for name in ("uidMappings", "gidMappings"))
    if users != groups:
        raise ValueError("uidMappings and gidMappings differ")
    return users


def _range(mappings: Any) -> IdMapping:
    if not isinstance(mappings, list) or len(mappings) != 1 or not isinstance(mappings[0], dict):
        raise ValueError("there must be exactly one mapping of users, and one of groups")
    first, inside, length = (mappings[0].get(name) for name in ("hostId", "containerId", "length"))
    if type(first) is not int or type(length) is not int or inside != 0:
        raise ValueError("a mapping must be of ids from 0 on")
    if not (0 < first < _LAST_ID and 0 < length <= _LAST_ID - first):
        raise ValueError(f"{length} ids from {first} on are no range")
    return IdMapping(host_id=first, length=length)


def check_support(pod: Pod, features: RuntimeFeatures, handler: str) -> None:
    """Raises ConfigError where the runtime cannot give the pod a user namespace of its own."""
    if pod.spec.host_users is not False:
        return
    if not features.handlers:
        raise ConfigError(NO_USER_NAMESPACE)
    found = next((each for each in features.handlers if each.name == handler), None)
    if found is None:
        raise ConfigError(f'the handler "{handler}" is not known')
    if found.features is None or not found.features.user_namespaces:
        name = f'RuntimeClass handler "{handler}"'
        raise ConfigError(f"{CANNOT}, {name} does not support user namespaces")


def mapping_of(config: cri.PodSandboxConfig) -> IdMapping | None:
    """The range that a sandbox is made with; None on the ids of the node."""
    options = config.linux.security_context.namespace_options.userns_options
    if not options.uids:
        return None
    ids = options.uids[0]
    return IdMapping(host_id=ids.host_id, length=ids.length, container_id=ids.container_id)


async def ids_of_sandboxes(client: RuntimeClient, uid: str) -> IdMapping | None:
    """The range that the sandboxes of a pod have; None where there are none, or on the node's ids.

    Raises RpcError.
    """
    of_pod = cri.PodSandboxFilter(label_selector={POD_UID_LABEL: uid})
    for sandbox in await client.list_pod_sandboxes(of_pod):
        response = await unless_gone(client.pod_sandbox_status(sandbox.id))
        if response is None:
            continue
        options = response.status.linux.namespaces.options.userns_options
        for ids in options.uids:
            return IdMapping(host_id=ids.host_id, length=ids.length, container_id=ids.container_id)
    return None


async def _no_sandboxes(_uid: str) -> IdMapping | None:
    await trio.lowlevel.checkpoint()
    return None


class PodIdRanges:
    """Owns the ranges of all pods. `root` is `--root-dir`; files are used in threads of `limiter`.

    `pool` is None where ids are configured that cannot be used; `problem` says then why. `ask`
    returns what the sandbox of a pod has, and raises RpcError.
    """

    def __init__(
        self,
        root: Path,
        limiter: trio.CapacityLimiter,
        pool: IdPool | None,
        problem: str = "",
        ask: Callable[[str], Awaitable[IdMapping | None]] = _no_sandboxes,
    ) -> None:
        self._ask = ask
        self._unknown: set[str] = set()
        self._finding_out = trio.Lock()
        self._root = str(root)
        self._limiter = limiter
        self._pool = pool
        self._given: dict[str, IdMapping] = {}
        self._problem = problem

    @classmethod
    async def open(
        cls,
        root: Path,
        uids: Iterable[str],
        *,
        ids_per_pod: int,
        max_pods: int,
        ask: Callable[[str], Awaitable[IdMapping | None]] = _no_sandboxes,
    ) -> "PodIdRanges":
        """Find the pool, and take note of what pods with a folder, `uids`, were given before."""
        limiter = trio.CapacityLimiter(1)
        try:
            subordinate = await read_subordinate_ids(limiter)
            pool = id_pool(subordinate, ids_per_pod=ids_per_pod, max_pods=max_pods)
            ranges = cls(root, limiter, pool, ask=ask)
        except ValueError as error:
            log.warning("no user namespaces for pods", error=str(error))
            ranges = cls(root, limiter, None, str(error), ask)
        read = partial(ranges._read_all, tuple(uids))
        ranges._given.update(await run_in_thread(read, limiter=limiter))
        return ranges

    def refusal(self, pod: Pod, features: RuntimeFeatures) -> str:
        """Why a pod cannot have a user namespace; empty if it can, as far as is known.

        What the handler of a runtime class can do is known when its class was looked up.
        """
        if self._problem:
            return f"{CANNOT}, {self._problem}"
        if pod.spec.runtime_class_name and features.handlers:
            return ""
        try:
            check_support(pod, features, "")
        except ConfigError as error:
            return error.message
        return ""

    async def mapping(self, pod: Pod) -> IdMapping | None:
        """The range of a pod, which it keeps until it is released; None for one without.

        Raises ConfigError where there is none to give, or it cannot be kept. Cancelled, the pod was
        given none.
        """
        uid = pod.metadata.uid
        if pod.spec.host_users is not False:
            return None
        if uid in self._given:
            return self._given[uid]
        await self._find_out()
        if uid in self._given:
            return self._given[uid]
        mapping = self._given[uid] = self._next()
        try:
            keep = partial(self._keep, uid, mapping)
            kept = await run_in_thread(keep, limiter=self._limiter)
        except (OSError, ValueError) as error:
            self._given.pop(uid, None)
            raise ConfigError(f"user namespace of the pod cannot be kept: {error}") from error
        except trio.Cancelled:
            self._given.pop(uid, None)
            raise
        self._given[uid] = kept
        return kept

    def release(self, uid: str) -> None:
        """The pod's folder is gone: others may have its ids."""
        self._given.pop(uid, None)
        self._unknown.discard(uid)

    async def _find_out(self) -> None:
        """Ask the runtime for the ranges of pods whose files cannot be understood; mend the files.

        Raises ConfigError where the runtime does not say, or a file cannot be written.
        """
        async with self._finding_out:
            for uid in sorted(self._unknown):
                path = self._path(uid)
                try:
                    mapping = await self._ask(uid)
                    mend = partial(_mend, path, mapping)
                    await run_in_thread(mend, limiter=self._limiter)
                except (RpcError, OSError) as error:
                    raise ConfigError(
                        f"{path} is damaged, and what its pod was given is not known yet: {error}"
                    ) from error
                if mapping is not None:
                    self._given[uid] = mapping
                self._unknown.discard(uid)
                log.info("damaged user namespace file repaired", file=str(path))

    def _next(self) -> IdMapping:
        if self._pool is None:
            raise ConfigError(f"{CANNOT}, {self._problem}")
        length = self._pool.ids_per_pod
        taken = sorted((each.host_id, each.host_id + each.length) for each in self._given.values())
        for first in self._pool.starts():
            if not any(start < first + length and first < end for start, end in taken):
                return IdMapping(host_id=first, length=length)
        raise ConfigError("could not find an empty slot to allocate a user namespace")

    def _keep(self, uid: str, mapping: IdMapping) -> IdMapping:
        """Write the file, unless there is one. Blocks; raises OSError, and ValueError of it."""
        path = self._path(uid)
        try:
            return parsed(path.read_text())
        except FileNotFoundError:
            write_whole(path, printed(mapping).encode(), folder_mode=0o750, durable=True)
            # The pod's folder may be there for its volumes, and not on the disk yet.
            sync_folder(path.parent.parent)
            return mapping
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _read_all(self, uids: Iterable[str]) -> Mapping[str, IdMapping]:
        found: dict[str, IdMapping] = {}
        for uid in uids:
            try:
                found[uid] = parsed(self._path(uid).read_text())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                path = str(self._path(uid))
                log.warning("user namespace of a pod is unreadable", file=path, error=str(error))
                self._unknown.add(uid)
        return found

    def _path(self, uid: str) -> Path:
        return Path(pod_directory(self._root, uid), FILE_NAME)


def _mend(path: Path, mapping: IdMapping | None) -> None:
    """Write what the pod has; without a sandbox it has nothing. Blocks; raises OSError."""
    if mapping is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, printed(mapping).encode(), durable=True)
