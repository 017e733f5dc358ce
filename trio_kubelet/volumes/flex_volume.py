"""flexVolume: volumes that a program on the node mounts (API: FlexVolumeSource).

The program of the driver `vendor/name` is `vendor~name/name` in the folder `volumePluginDir`. It is
asked for one thing at a time by its arguments, and answers with JSON: `init` once for each version
of the file, `mount` with the pod's folder and the volume's options, `unmount` with the folder. A
driver that wants volumes to be attached to nodes is refused. The node takes nothing of a driver's
away before the driver has unmounted it.

A mark is in the pod's folder from before `mount` until all is done (`DoubtMarks`): the next agent
asks for such a volume again, and takes others to be mounted. `unmount` may come more than once.
"""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from attrs import define, field, frozen

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import FlexPersistentVolumeSource, FlexVolumeSource, Pod, Secret
from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.programs import run_program
from trio_kubelet.volumes.back_offs import BackOffs
from trio_kubelet.volumes.doubt_marks import DoubtMarks
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders, plugin_folder
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.payload import fs_group
from trio_kubelet.volumes.plugin import MountedVolume, VolumeBusy, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume

CALL_SECONDS = 120.0
CALLS, CALLS_OF_NAMESPACE, CALLS_OF_POD = 16, 8, 4
"""Programs that run at a time."""
MAX_ANSWER_BYTES = 64 * 1024
MAX_SHOWN_BYTES = 1024
"""Of an answer that is none."""

_SUCCESS, _NOT_SUPPORTED = "Success", "Not supported"


class FlexVolumeError(Exception):
    """A driver has not done what it was asked for; the text says why."""


@frozen(kw_only=True)
class FlexCapabilities:
    """The abilities of a driver by its own account: `attach`, that volumes must be attached."""

    attach: bool = True
    fs_group: bool = True


@frozen
class FlexDrivers:
    """The programs below a folder. `taken` are the names of other plugins.

    The agent may remove what is in the folders of those.
    """

    folder: Path
    taken: frozenset[str]

    def driver(self, name: str) -> "FlexDriver":
        """Return the driver `vendor/name`, or `name`; raises FlexVolumeError for no such name."""
        parts = name.split("/")
        if len(parts) > 2 or not all(map(is_path_part, parts)):
            raise FlexVolumeError(f"{name!r} is no name of a flexVolume driver")
        if name in self.taken:
            raise FlexVolumeError(f"{name!r} is the name of another plugin")
        return FlexDriver(name, self.folder / plugin_folder(name) / parts[-1])


@frozen
class FlexDriver:
    """The program of a driver, which need not be there."""

    name: str
    executable: Path

    async def call(self, command: str, *arguments: str) -> Mapping[str, Any]:
        """Have something done; returns the answer. Raises FlexVolumeError.

        Cancelled, the program is killed.
        """
        try:
            end = await run_program(
                (str(self.executable), command, *arguments),
                seconds=CALL_SECONDS,
                max_stdout_bytes=MAX_ANSWER_BYTES,
            )
        except FileNotFoundError as error:
            raise FlexVolumeError(f"driver {self.name} is not installed: {error}") from error
        except (OSError, ValueError, RuntimeError) as error:
            raise FlexVolumeError(f"driver {self.name}: {error}") from error
        answer = _answer(end.stdout)
        if answer.get("status") == _SUCCESS and not end.problem:
            return answer
        if "status" in answer:
            status, message = answer["status"], answer.get("message", "")
            problem = f"status: {status}, reason: {message}"
        else:
            said = (end.stderr or end.stdout[:MAX_SHOWN_BYTES]).decode(errors="replace").strip()
            problem = f"{end.problem or 'no JSON with a status'}: {said}"
        raise FlexVolumeError(f"{command} command failed, {problem}")


def _answer(text: bytes) -> Mapping[str, Any]:
    """Return what a driver answered; empty if that is no answer."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


@define(eq=False)
class FlexVolumes:
    """The plugin for `flexVolume`."""

    _drivers: FlexDrivers
    _folders: PodFolders
    _threads: VolumeThreads
    _ownership: VolumeOwnership
    _objects: References | NoReferences
    _slots: FairLimiter = field(
        init=False, factory=lambda: FairLimiter(CALLS, CALLS_OF_NAMESPACE, CALLS_OF_POD)
    )
    _back_offs: BackOffs = field(init=False, factory=BackOffs)
    _capabilities: dict[Path, tuple[tuple[int, int], FlexCapabilities]] = field(
        init=False, factory=dict
    )
    """By the driver's file, with its inode and time: a new version is asked again."""

    name = "kubernetes.io/flexvolume"

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Have the driver mount the volume, unless it has; raises VolumeError, VolumeBackOff.

        Cancelled, the program is killed, and the driver is asked again by the next call.
        """
        source, key = flex_source(volume), (pod.metadata.uid, volume.spec_name)
        self._back_offs.check(key)
        try:
            folder = await self._mount(pod, volume, source)
        except (FlexVolumeError, ObjectError, OSError, ValueError) as error:
            problem = VolumeError(volume.spec_name, str(error))
            raise self._back_offs.failed(key, problem) from error
        self._back_offs.succeeded(key)
        return MountedVolume(name=volume.name, host_path=str(folder), read_only=volume.read_only)

    async def unmount(self, pod_uid: str, threads: Share) -> None:
        """Have drivers unmount all volumes of a pod. Raises VolumeBusy where one does not, OSError.

        A folder whose driver is not there any more is left to who unmounts what is left.
        """
        for folder, driver in await threads.run_sync(partial(self._mounted_for, pod_uid)):
            try:
                # Its namespace is not known any more; a driver that hangs has slots of its own.
                async with self._slots.share(f"driver {driver.name}", pod_uid):
                    await driver.call("unmount", str(folder))
            except FlexVolumeError as error:
                raise VolumeBusy(folder, str(error)) from error
            await threads.run_sync(partial(self._marks(pod_uid).remove, pod_uid, folder.name))

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: the driver has unmounted the volume, and the files are its own."""

    def release(self, pod_uid: str) -> None:
        """A pod has no volumes any more."""
        self._back_offs.forget(pod_uid)

    def _marks(self, pod_uid: str) -> DoubtMarks:
        """Return the marks of a pod, which go with its folder."""
        return DoubtMarks(self._folders.pod(pod_uid) / "plugins" / plugin_folder(self.name))

    async def _mount(
        self,
        pod: Pod,
        volume: ResolvedVolume,
        source: FlexVolumeSource | FlexPersistentVolumeSource,
    ) -> Path:
        """Have it mounted; returns where. Raises FlexVolumeError, ObjectError, OSError."""
        uid, threads = pod.metadata.uid, self._threads.preparing.share_of(pod.metadata)
        driver = self._drivers.driver(source.driver)
        capabilities = await self._capabilities_of(driver, pod)
        folder = self._folders.volume(uid, source.driver, volume.spec_name)
        if await threads.run_sync(partial(self._is_done, uid, folder)):
            return folder
        secret = await self._secret(pod, source)
        options = orjson.dumps(flex_options(pod, volume, source, secret)).decode()
        await threads.run_sync(partial(self._begin, uid, folder))
        async with self._slots.share_of(pod.metadata):
            await driver.call("mount", str(folder), options)
        if capabilities.fs_group and not volume.read_only:
            await self._ownership.give(pod, folder, volume.spec_name)
        await threads.run_sync(partial(self._marks(uid).remove, uid, folder.name))
        return folder

    async def _capabilities_of(self, driver: FlexDriver, pod: Pod) -> FlexCapabilities:
        """Return what a driver is like. Raises FlexVolumeError for one that attaches, OSError."""
        threads = self._threads.preparing.share_of(pod.metadata)
        path = driver.executable
        try:
            found = await threads.run_sync(partial(os.stat, path))
        except FileNotFoundError as error:
            raise FlexVolumeError(
                f"no volume plugin matched: flexVolume driver {driver.name} is not installed: "
                f"there is no {path}"
            ) from error
        version = found.st_ino, found.st_mtime_ns
        known = self._capabilities.get(path)
        if known is None or known[0] != version:
            async with self._slots.share_of(pod.metadata):
                told = (await driver.call("init")).get("capabilities")
            told = told if isinstance(told, dict) else {}
            capabilities = FlexCapabilities(
                attach=told.get("attach", True) is not False,
                fs_group=told.get("fsGroup", True) is not False,
            )
            known = self._capabilities[path] = version, capabilities
        if known[1].attach:
            raise FlexVolumeError(
                f"flexVolume driver {driver.name} wants volumes to be attached to nodes (its init "
                'does not answer with "attach": false), which this kubelet does not do'
            )
        return known[1]

    async def _secret(
        self, pod: Pod, source: FlexVolumeSource | FlexPersistentVolumeSource
    ) -> Secret | None:
        """Return the secret of a volume, whose type must be its driver. Raises ObjectError."""
        if source.secret_ref is None:
            return None
        name, namespace = source.secret_ref.name, pod.metadata.namespace
        if isinstance(source, FlexPersistentVolumeSource):
            namespace = source.secret_ref.namespace or namespace
            secret = await self._objects.volume_secret(namespace, name)
        else:
            secret = await self._objects.secret(namespace, name)
        if secret.type != source.driver:
            raise ObjectError(f"cannot get secret of type {source.driver}")
        return secret

    def _begin(self, uid: str, folder: Path) -> None:
        self._marks(uid).make(uid, folder.name)
        make_folders(folder, FOLDER_MODE)

    def _is_done(self, uid: str, folder: Path) -> bool:
        return is_mounted(folder) and not self._marks(uid).is_made(uid, folder.name)

    def _mounted_for(self, pod_uid: str) -> tuple[tuple[Path, FlexDriver], ...]:
        """Return the folders of a pod that drivers may have mounted, and whose they are. Blocks."""
        found = []
        for plugin in self._folders.volumes(pod_uid).glob("*"):
            with suppress(FlexVolumeError):
                driver = self._drivers.driver(plugin.name.replace("~", "/", 1))
                if driver.executable.exists() and plugin.is_dir():
                    found += [(folder, driver) for folder in plugin.iterdir()]
        return tuple(found)


def flex_source(volume: ResolvedVolume) -> FlexVolumeSource | FlexPersistentVolumeSource:
    """Return the source of a volume of a flexVolume driver, of either kind."""
    if volume.persistent is None:
        return volume.source_as(FlexVolumeSource)
    return volume.source_as(FlexPersistentVolumeSource)


def flex_options(
    pod: Pod,
    volume: ResolvedVolume,
    source: FlexVolumeSource | FlexPersistentVolumeSource,
    secret: Secret | None,
) -> Mapping[str, str]:
    """Return what a driver is told of a volume and its pod; values of secrets in base64."""
    group = fs_group(pod)
    data = {} if secret is None else secret.data
    return {
        **source.options,
        "kubernetes.io/fsType": source.fs_type,
        "kubernetes.io/readwrite": "ro" if volume.read_only else "rw",
        "kubernetes.io/pvOrVolumeName": volume.spec_name,
        "kubernetes.io/pod.name": pod.metadata.name,
        "kubernetes.io/pod.namespace": pod.metadata.namespace,
        "kubernetes.io/pod.uid": pod.metadata.uid,
        "kubernetes.io/serviceAccount.name": pod.spec.service_account_name,
        **({} if group is None else {"kubernetes.io/mounterArgs.FsGroup": str(group)}),
        **{
            f"kubernetes.io/secret/{key}": base64.b64encode(value).decode()
            for key, value in data.items()
        },
    }
