"""The folders of pods under the agent's root folder: where everything of a pod is, and its modes.

The layout is that of the Go kubelet, so that a node can be taken over in either direction.
"""

from pathlib import Path

from attrs import frozen

from trio_kubelet.foreign_text import is_path_part

FOLDER_MODE = 0o750
PLUGIN_FOLDER_MODE = 0o755
"""Of `pods/<uid>/volumes/<plugin>`, as the Go kubelet makes it."""
_PODS = "pods"
_PARTS = ("volumes", "containers", "plugins")


def plugin_folder(plugin: str) -> str:
    """Return a plugin's name as a folder's: `kubernetes.io~empty-dir`."""
    return plugin.replace("/", "~")


@frozen
class PodFolders:
    """Names and makes the folders of pods. `root` is `--root-dir`; methods that act block."""

    root: Path

    @property
    def pods(self) -> Path:
        """`<root>/pods`."""
        return self.root / _PODS

    @property
    def plugins(self) -> Path:
        """`<root>/plugins`, where volumes are staged for all their pods."""
        return self.root / "plugins"

    def pod(self, uid: str) -> Path:
        """Return `pods/<uid>`; raises ValueError for a UID that is no plain file name."""
        if not uid or uid in (".", "..") or "/" in uid or "\0" in uid:
            raise ValueError(f"pod UID {uid!r} cannot name a folder")
        return self.pods / uid

    def volumes(self, uid: str) -> Path:
        """Return `pods/<uid>/volumes`."""
        return self.pod(uid) / "volumes"

    def volume(self, uid: str, plugin: str, name: str) -> Path:
        """Return `pods/<uid>/volumes/<plugin>/<name>`."""
        return self.volumes(uid) / plugin_folder(plugin) / name

    def devices(self, uid: str) -> Path:
        """Return `pods/<uid>/volumeDevices`."""
        return self.pod(uid) / "volumeDevices"

    def device(self, uid: str, plugin: str, name: str) -> Path:
        """Return `pods/<uid>/volumeDevices/<plugin>/<name>`, the link to a volume's device."""
        return self.devices(uid) / plugin_folder(plugin) / name

    def device_users(self, plugin: str, name: str) -> Path:
        """Return `plugins/<plugin>/volumeDevices/<name>`, which has a file for each pod's UID."""
        return self.root / "plugins" / plugin_folder(plugin) / "volumeDevices" / name

    def plugin(self, uid: str, plugin: str, name: str) -> Path:
        """Return `pods/<uid>/plugins/<plugin>/<name>`, where a plugin keeps its marks."""
        return self.pod(uid) / "plugins" / plugin_folder(plugin) / name

    def sub_paths(self, uid: str) -> Path:
        """Return `pods/<uid>/volume-subpaths`."""
        return self.pod(uid) / "volume-subpaths"

    def sub_path(self, uid: str, volume: str, container: str, index: int) -> Path:
        """Return where a subPath is bound: the index is that of the container's volume mount."""
        return self.sub_paths(uid) / volume / container / str(index)

    def create(self, uid: str) -> None:
        """Make the folders that every pod has."""
        for folder in (self.pods, self.pod(uid)):
            make_folder(folder)
        for part in _PARTS:
            make_folder(self.pod(uid) / part)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that have a folder."""
        try:
            return frozenset(
                each.name
                for each in self.pods.iterdir()
                if is_path_part(each.name) and each.is_dir()
            )
        except FileNotFoundError:
            return frozenset()


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Make one folder with exactly that mode, whatever the umask; one that exists is left alone."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        return
    path.chmod(mode)


def make_folders(path: Path, mode: int = FOLDER_MODE) -> None:
    """Make a folder and those above it that are missing, all with that mode."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        make_folder(folder, mode)
