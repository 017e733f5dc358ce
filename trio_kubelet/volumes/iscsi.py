"""iscsi: disks of iSCSI targets (API: ISCSIVolumeSource, ISCSIPersistentVolumeSource).

The host's iscsiadm asks each portal for its targets and logs in; then the kernel is told to look
for the one LUN. Which sessions there are, and which disk is whose, is read off sysfs. A session
that was there before stays when the last volume goes, and so does one with other disks in use.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from attrs import define, evolve, field, frozen

from trio_kubelet.k8s import ISCSIPersistentVolumeSource, ISCSIVolumeSource, Pod, Secret
from trio_kubelet.kernel.scsi_disks import ISCSISession, SCSIDisks
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.keyed_locks import KeyedLocks
from trio_kubelet.tasks.programs import ProgramEnd
from trio_kubelet.volumes.disk_file_systems import failure, program_limiter, run_tool
from trio_kubelet.volumes.disk_paths import DiskPaths
from trio_kubelet.volumes.disks import (
    MAX_NAME_BYTES,
    AttachedDisk,
    Others,
    require_few,
    require_short,
)
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.iscsi_database import ISCSIDatabase, ISCSIDatabaseError
from trio_kubelet.volumes.resolved import ResolvedVolume

CALL_SECONDS = 120.0
"""iscsiadm itself gives up a login after its own times, 15 s a try."""
DEFAULT_PORT = "3260"
MAX_PORTALS = 16
"""Beside the first one: each has a session, and programs run for it one after the other."""
MAX_PORTAL_BYTES, MAX_IQN_BYTES = 253, 223
"""The lengths of a host's name and of an iSCSI name (RFC 3720)."""
MAX_SHOWN_PROBLEMS = 3
SECRET_TYPE = "kubernetes.io/iscsi-chap"  # noqa: S105 - the type of secrets, and none itself

_DISCOVERY, _SESSION = "discovery.sendtargets.auth", "node.session.auth"
_NEEDED, _OF_TARGET = ("username", "password"), ("username_in", "password_in")
_EXISTS, _NO_RECORD = "exit status 15", "exit status 21"
"""Ends of iscsiadm: what is to be made is there; there is no such session or record."""
_EMPTY = "<empty>"

ISCSISource = ISCSIVolumeSource | ISCSIPersistentVolumeSource


@frozen(kw_only=True)
class ISCSILun:
    """A disk of a target, by the portals and the interface through which it is reached.

    `base_interface` is the one that `interface` is made like, for an initiator name of its own.
    `found_portals` had sessions before, which are not this node agent's.
    """

    portals: tuple[str, ...]
    target: str
    lun: int
    interface: str
    base_interface: str = ""
    initiator: str = ""
    found_portals: tuple[str, ...] = ()

    @property
    def own_portals(self) -> tuple[str, ...]:
        """The portals with sessions that were made for volumes."""
        return tuple(each for each in self.portals if each not in self.found_portals)

    def key(self, portal: str) -> tuple[str, str, str]:
        """Return what tells the session with a portal from others."""
        return self.target, self.interface, portal

    def to_record(self) -> Mapping[str, object]:
        """Return the values for the record on the disk, without secrets."""
        return {
            "portals": self.portals,
            "target": self.target,
            "lun": self.lun,
            "interface": self.interface,
            "baseInterface": self.base_interface,
            "initiator": self.initiator,
            "foundPortals": self.found_portals,
        }

    @classmethod
    def of_record(cls, disk: AttachedDisk) -> "ISCSILun":
        """Return what a record says. Raises KeyError, TypeError, ValueError."""
        told = disk.source
        return cls(
            portals=tuple(map(str, told["portals"])),
            target=str(told["target"]),
            lun=int(told["lun"]),
            interface=str(told["interface"]),
            base_interface=str(told.get("baseInterface", "")),
            initiator=str(told.get("initiator", "")),
            found_portals=tuple(map(str, told.get("foundPortals", ()))),
        )


def iscsi_lun(source: ISCSISource, volume: str) -> ISCSILun:
    """Return the disk that a source names. `volume` names an interface of its own."""
    portals = tuple(map(with_port, (source.target_portal, *source.portals)))
    interface, base = source.iscsi_interface or "default", ""
    if source.initiator_name:
        interface, base = f"{portals[0]}:{volume}", interface
    return ISCSILun(
        portals=tuple(dict.fromkeys(portals)),
        target=source.iqn,
        lun=source.lun,
        interface=interface,
        base_interface=base,
        initiator=source.initiator_name,
    )


def with_port(portal: str) -> str:
    """Return a portal as `address:port`; one of IPv6 has its address in brackets."""
    if portal.count(":") > 1 and "[" not in portal:
        return f"[{portal}]:{DEFAULT_PORT}"
    host, _, port = portal.rpartition(":")
    return (
        portal
        if host and port.isdecimal() and not host.endswith(":")
        else f"{portal}:{DEFAULT_PORT}"
    )


def _split(portal: str) -> tuple[str, str]:
    host, _, port = portal.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def chap_settings(secret: Secret, name: str, prefix: str) -> Mapping[str, str]:
    """Return the settings of a login with a secret: those of one prefix.

    Raises ObjectError for a secret of another type, without a key, or with what cannot be written
    into a line.
    """
    if secret.type != SECRET_TYPE:
        raise ObjectError(f"secret {name} has the type {secret.type}, and not {SECRET_TYPE}")
    found = {f"{prefix}.authmethod": "CHAP"}
    for part in (*_NEEDED, *_OF_TARGET):
        key = f"{prefix}.{part}"
        if key not in secret.data:
            if part in _NEEDED:
                raise ObjectError(f"secret {name} has no key {key}")
            continue
        try:
            value = secret.data[key].decode("ascii")
        except UnicodeDecodeError as error:
            raise ObjectError(f"secret {name}: {key} must be of ASCII characters") from error
        if not value.isprintable() or value != value.strip() or not value:
            raise ObjectError(f"secret {name}: {key} must be one line without blanks at its ends")
        found[key] = value
    return found


@define(eq=False)
class ISCSIDisks:
    """The kind `iscsi` of disks."""

    _objects: References | NoReferences
    _disks: SCSIDisks = field(factory=SCSIDisks)
    _database: ISCSIDatabase = field(factory=ISCSIDatabase)
    _paths: DiskPaths = field(init=False)
    _logins: FairLimiter = field(init=False, factory=program_limiter)
    """A pod has a slot while it logs in at one portal."""
    _logouts: FairLimiter = field(init=False, factory=program_limiter)
    _locks: KeyedLocks[tuple[str, ...]] = field(init=False, factory=KeyedLocks)
    """For each session, as one volume may end that which another has found, and each interface.

    There is none for a whole target: anybody may name it, with a portal that never answers.
    """

    name = "kubernetes.io/iscsi"
    is_attached_by_controller = True

    def __attrs_post_init__(self) -> None:
        self._paths = DiskPaths(self._disks)

    def disk(self, volume: ResolvedVolume) -> AttachedDisk:
        """Return the disk of a volume, with places and names as in the Go kubelet.

        Raises ValueError for a source with too many portals, or with too long a text.
        """
        source = _source(volume)
        _check_lengths(source)
        name = f"{source.target_portal}:{source.iqn}:{source.lun}"
        require_short("iscsi: the name of the disk", name, MAX_NAME_BYTES)
        lun = iscsi_lun(source, volume.spec_name)
        return AttachedDisk(
            plugin=self.name,
            name=name,
            folder=(f"iface-{lun.interface}", f"{lun.portals[0]}-{lun.target}-lun-{lun.lun}"),
            is_block=volume.is_block,
            volume=volume.spec_name,
            source=lun.to_record(),
        )

    async def with_what_is_there(
        self, disk: AttachedDisk, others: Sequence[AttachedDisk], threads: Share
    ) -> AttachedDisk:
        """Return a disk with the portals that have sessions, which are of no other volume."""
        lun = ISCSILun.of_record(disk)
        look = partial(self._found_portals, lun, others)
        found = await threads.run_sync(look)
        return evolve(disk, source=evolve(lun, found_portals=found).to_record())

    async def attach(
        self, disk: AttachedDisk, pod: Pod, volume: ResolvedVolume, threads: Share
    ) -> Path:
        """Log in at the portals and return the device. Raises OSError, ObjectError, ValueError.

        One portal that answers is enough.
        """
        lun, source = ISCSILun.of_record(disk), _source(volume)
        secret = await self._secret(pod, source)
        if lun.initiator:
            async with self._locks.held((lun.interface,)):
                await self._make_interface(lun)
        problems: list[str] = []
        for portal in lun.portals:
            try:
                async with (
                    self._logins.share_of(pod.metadata),
                    self._locks.held(lun.key(portal)),
                ):
                    await self._log_in(lun, portal, source, secret, threads)
            except (OSError, ISCSIDatabaseError) as error:
                problems.append(f"portal {portal}: {error}")
        if len(problems) == len(lun.portals):
            raise OSError(f"iscsi: {_shown(problems)}")
        return await self._paths.wait(
            partial(self._paths_of, lun, lun.portals), f"LUN {lun.lun} of {lun.target}", threads
        )

    async def detach(self, disk: AttachedDisk, others: Others, threads: Share) -> None:
        """Remove the disk and end its sessions, unless `others` need them. Raises OSError."""
        lun = ISCSILun.of_record(disk)
        for portal in lun.portals:
            async with (
                self._logouts.share(lun.target, portal),
                self._locks.held(lun.key(portal)),
            ):
                await self._leave(lun, portal, others, threads)
        if lun.initiator:
            async with self._locks.held((lun.interface,)):
                if all(
                    each.interface != lun.interface for each in map(ISCSILun.of_record, others())
                ):
                    name = ("-m", "iface", "-I", lun.interface)
                    await self._iscsiadm(*name, "-o", "delete", may=_NO_RECORD)

    async def _leave(self, lun: ISCSILun, portal: str, others: Others, threads: Share) -> None:
        """Remove the path to a disk through a portal, and end its session. Raises OSError."""
        session = lun.key(portal)
        luns = {
            each.lun
            for each in map(ISCSILun.of_record, others())
            if session in map(each.key, each.portals)
        }
        if lun.lun not in luns:
            await self._paths.remove(partial(self._paths_of, lun, (portal,)), threads)
        if portal in lun.own_portals and await threads.run_sync(
            partial(self._is_unused, lun, portal, luns)
        ):
            await self._log_out(lun, portal)

    def device(self, disk: AttachedDisk) -> Path | None:
        """Return the device of a disk that is attached. Blocks."""
        lun = ISCSILun.of_record(disk)
        return self._paths.device(self._paths_of(lun, lun.portals))

    def mounted(self, _folders: PodFolders) -> Sequence[tuple[AttachedDisk, Sequence[str]]]:
        """Return none: a mount does not tell the sessions of its disk."""
        return ()

    def _paths_of(self, lun: ISCSILun, portals: Sequence[str]) -> Sequence[str]:
        """Return the names of a LUN's disks, one for each session with the portals. Blocks."""
        found = []
        for session in self._disks.sessions():
            if any(_is_of(session, lun, portal) for portal in portals):
                disks = self._disks.disks_of_session(session)
                found += [disks[lun.lun]] if lun.lun in disks else []
        return found

    def _found_portals(self, lun: ISCSILun, others: Sequence[AttachedDisk]) -> tuple[str, ...]:
        """Return the portals that have sessions which were not made for `others`. Blocks."""
        own = {
            each.key(portal)
            for each in map(ISCSILun.of_record, others)
            for portal in each.own_portals
        }
        sessions = self._disks.sessions()
        return tuple(
            portal
            for portal in lun.portals
            if lun.key(portal) not in own and _of_portal(sessions, lun, portal)
        )

    def _is_unused(self, lun: ISCSILun, portal: str, luns: Collection[int]) -> bool:
        """True if no session with a portal has one of `luns`, or a disk in use. Blocks."""
        return not any(
            number in luns or self._disks.is_in_use(disk)
            for session in _of_portal(self._disks.sessions(), lun, portal)
            for number, disk in self._disks.disks_of_session(session).items()
        )

    def _hosts_to_scan(self, lun: ISCSILun, portal: str) -> Sequence[str]:
        """Return the adapters of the sessions with a portal that do not have the LUN yet."""
        return [
            session.folder.parent.name
            for session in _of_portal(self._disks.sessions(), lun, portal)
            if lun.lun not in self._disks.disks_of_session(session)
        ]

    async def _make_interface(self, lun: ISCSILun) -> None:
        """Make an interface like another one, with an initiator name of its own. Raises OSError."""
        name = ("-m", "iface", "-I", lun.interface)
        base = await self._iscsiadm("-m", "iface", "-I", lun.base_interface, "-o", "show")
        await self._iscsiadm(*name, "-o", "new", may=_EXISTS)
        lines = base.stdout.decode(errors="replace").splitlines()
        settings = dict(each.split(" = ", 1) for each in lines if " = " in each)
        settings.pop("iface.iscsi_ifacename", None)
        settings["iface.initiatorname"] = lun.initiator
        for setting, value in settings.items():
            if value not in (_EMPTY, "0"):
                await self._iscsiadm(*name, "-o", "update", "-n", setting, "-v", value)

    async def _log_in(
        self,
        lun: ISCSILun,
        portal: str,
        source: ISCSISource,
        secret: Secret | None,
        threads: Share,
    ) -> None:
        """Have a session with a portal, and the LUN in it. Raises OSError, ISCSIDatabaseError."""
        found = await threads.run_sync(self._disks.sessions)
        if not _of_portal(found, lun, portal):
            await self._discover(lun, portal, source, secret, threads)
            node = ("-m", "node", "-p", portal, "-T", lun.target, "-I", lun.interface)
            await self._iscsiadm(*node, "-o", "update", "-n", "node.startup", "-v", "manual")
            # Else the session would have all LUNs of the target, also those of other nodes.
            await self._iscsiadm(*node, "-o", "update", "-n", "node.session.scan", "-v", "manual")
            if source.chap_auth_session and secret is not None:
                values = chap_settings(secret, _secret_name(source), _SESSION)
                set_node = partial(self._database.set_node, lun.target, _split(portal)[1])
                await threads.run_sync(partial(set_node, lun.interface, values))
            await self._iscsiadm(*node, "--login", may=_EXISTS)
        for host in await threads.run_sync(partial(self._hosts_to_scan, lun, portal)):
            await threads.run_sync(partial(self._disks.scan, host, lun.lun))

    async def _discover(
        self,
        lun: ISCSILun,
        portal: str,
        source: ISCSISource,
        secret: Secret | None,
        threads: Share,
    ) -> None:
        """Have the portal tell its targets, from which iscsiadm makes its records."""
        discovery = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", lun.interface)
        await self._iscsiadm(*discovery, "-o", "new", may=_EXISTS)
        if source.chap_auth_discovery and secret is not None:
            values = chap_settings(secret, _secret_name(source), _DISCOVERY)
            set_discovery = partial(self._database.set_discovery, *_split(portal), values)
            await threads.run_sync(set_discovery)
        try:
            await self._iscsiadm(*discovery, "--discover")
        except OSError:
            await self._iscsiadm(*discovery, "-o", "delete", may=_NO_RECORD)
            raise

    async def _log_out(self, lun: ISCSILun, portal: str) -> None:
        node = ("-m", "node", "-p", portal, "-T", lun.target, "-I", lun.interface)
        await self._iscsiadm(*node, "--logout", may=_NO_RECORD)
        await self._iscsiadm(*node, "-o", "delete", may=_NO_RECORD)

    async def _iscsiadm(self, *arguments: str, may: str = "") -> ProgramEnd:
        """Run iscsiadm; it may end as `may` says. Raises OSError."""
        end = await run_tool("iscsiadm", *arguments, seconds=CALL_SECONDS)
        if end.problem not in ("", may):
            raise failure(f"iscsiadm {' '.join(arguments)}", end)
        return end

    async def _secret(self, pod: Pod, source: ISCSISource) -> Secret | None:
        """Return the secret of a source that wants one. Raises ObjectError."""
        if not (source.chap_auth_session or source.chap_auth_discovery):
            return None
        if source.secret_ref is None:
            raise ObjectError("iscsi.secretRef must name a secret for CHAP")
        name, namespace = source.secret_ref.name, pod.metadata.namespace
        if isinstance(source, ISCSIPersistentVolumeSource):
            namespace = source.secret_ref.namespace or namespace
            return await self._objects.volume_secret(namespace, name)
        return await self._objects.secret(namespace, name)


def _source(volume: ResolvedVolume) -> ISCSISource:
    if volume.persistent is None:
        return volume.source_as(ISCSIVolumeSource)
    return volume.source_as(ISCSIPersistentVolumeSource)


def _check_lengths(source: ISCSISource) -> None:
    """Check a source before anything is made of it. Raises ValueError."""
    require_short("iscsi.targetPortal", source.target_portal, MAX_PORTAL_BYTES)
    require_few("iscsi.portals", source.portals, MAX_PORTALS, MAX_PORTAL_BYTES)
    require_short("iscsi.iqn", source.iqn, MAX_IQN_BYTES)
    require_short("iscsi.initiatorName", source.initiator_name or "", MAX_IQN_BYTES)
    require_short("iscsi.iscsiInterface", source.iscsi_interface or "", MAX_PORTAL_BYTES)


def _shown(problems: Sequence[str]) -> str:
    """Return the first problems as one text, and how many more there are."""
    more = len(problems) - MAX_SHOWN_PROBLEMS
    shown = "; ".join(problems[:MAX_SHOWN_PROBLEMS])
    return f"{shown}; {more} more failed" if more > 0 else shown


def _secret_name(source: ISCSISource) -> str:
    return "" if source.secret_ref is None else source.secret_ref.name


def _of_portal(
    sessions: Sequence[ISCSISession], lun: ISCSILun, portal: str
) -> Sequence[ISCSISession]:
    return [each for each in sessions if _is_of(each, lun, portal)]


def _is_of(session: ISCSISession, lun: ISCSILun, portal: str) -> bool:
    """True if a session is with a target, at a portal, through an interface."""
    host, port = _split(portal)
    wanted = (lun.target, lun.interface, host, port)
    return wanted == (session.target, session.interface, session.address, session.port)
