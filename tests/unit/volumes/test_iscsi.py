"""Volumes of the source iscsi: what is read off sysfs, written into records, and said."""

from pathlib import Path

import pytest

from trio_kubelet.k8s import ISCSIVolumeSource, ObjectMeta, Secret
from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.references import ObjectError
from trio_kubelet.volumes.iscsi import chap_settings, iscsi_lun, with_port
from trio_kubelet.volumes.iscsi_database import ISCSIDatabase, ISCSIDatabaseError

TARGET = "iqn.2026-11.lab:disks"
RECORD = """\
# BEGIN RECORD 2.1.11
node.name = iqn.2026-11.lab:disks
node.session.auth.authmethod = None
node.conn[0].address = 127.0.0.1
# END RECORD
"""
CHAP = {"node.session.auth.authmethod": "CHAP", "node.session.auth.password": "p w"}


@pytest.mark.parametrize(
    ("portal", "whole"),
    [
        ("10.0.0.1", "10.0.0.1:3260"),
        ("10.0.0.1:860", "10.0.0.1:860"),
        ("[fd00::1]:860", "[fd00::1]:860"),
        ("[fd00::1]", "[fd00::1]:3260"),
        ("fd00::1", "[fd00::1]:3260"),
        ("san.example", "san.example:3260"),
    ],
)
def test_a_portal_without_a_port_has_the_usual_one(portal: str, whole: str) -> None:
    assert with_port(portal) == whole


def test_an_initiator_name_has_an_interface_of_its_own() -> None:
    source = ISCSIVolumeSource(
        target_portal="10.0.0.1", portals=("10.0.0.1:3260", "10.0.0.2"), iqn=TARGET, lun=3
    )
    assert iscsi_lun(source, "v").portals == ("10.0.0.1:3260", "10.0.0.2:3260")
    assert iscsi_lun(source, "v").interface == "default"
    named = ISCSIVolumeSource(
        target_portal="10.0.0.1", iqn=TARGET, iscsi_interface="fast", initiator_name="iqn.own"
    )
    lun = iscsi_lun(named, "v")
    assert (lun.interface, lun.base_interface) == ("10.0.0.1:3260:v", "fast")


def a_secret(**data: bytes) -> Secret:
    whole = {"node.session.auth.username": b"u", "node.session.auth.password": b"p", **data}
    return Secret(
        metadata=ObjectMeta(name="s"),
        type="kubernetes.io/iscsi-chap",
        data={key: value for key, value in whole.items() if value},
    )


def test_settings_of_a_login_are_those_of_the_secret() -> None:
    other = {"node.session.auth.username_in": b"t", "node.session.auth.password_in": b"q"}
    assert chap_settings(a_secret(**other), "s", "node.session.auth") == {
        "node.session.auth.authmethod": "CHAP",
        "node.session.auth.username": "u",
        "node.session.auth.password": "p",
        "node.session.auth.username_in": "t",
        "node.session.auth.password_in": "q",
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "secret s has no key node.session.auth.password"),
        (b"p\nnode.session.auth.authmethod = None", "must be one line"),
        (b" p", "must be one line without blanks at its ends"),
        ("pä".encode(), "must be of ASCII characters"),
    ],
)
def test_a_secret_that_cannot_be_written_into_a_record_is_refused(value: bytes, words: str) -> None:
    with pytest.raises(ObjectError, match=words):
        chap_settings(a_secret(**{"node.session.auth.password": value}), "s", "node.session.auth")


def test_a_secret_of_another_type_is_refused() -> None:
    secret = Secret(metadata=ObjectMeta(name="s"), type="Opaque", data=a_secret().data)
    with pytest.raises(ObjectError, match="has the type Opaque"):
        chap_settings(secret, "s", "node.session.auth")


@pytest.mark.parametrize(
    "path", [f"nodes/{TARGET}/10.0.0.1,3260,1/default", "nodes/{}/10.0.0.1,3260"]
)
def test_passwords_are_written_into_the_records_of_a_target(tmp_path: Path, path: str) -> None:
    record = tmp_path / "new" / path.format(TARGET)
    record.parent.mkdir(parents=True)
    record.write_text(RECORD)
    database = ISCSIDatabase((tmp_path / "none", tmp_path / "new"))
    for _ in range(2):
        database.set_node(TARGET, "3260", "default", CHAP)
    assert record.read_text() == (
        "# BEGIN RECORD 2.1.11\n"
        "node.name = iqn.2026-11.lab:disks\n"
        "node.conn[0].address = 127.0.0.1\n"
        "node.session.auth.authmethod = CHAP\n"
        "node.session.auth.password = p w\n"
        "# END RECORD\n"
    )
    assert record.stat().st_mode & 0o077 == 0


def test_a_portal_that_is_asked_for_targets_has_a_record_of_its_own(tmp_path: Path) -> None:
    record = tmp_path / "send_targets/10.0.0.1,3260/st_config"
    record.parent.mkdir(parents=True)
    record.write_text("discovery.type = sendtargets\n")
    ISCSIDatabase((tmp_path,)).set_discovery("10.0.0.1", "3260", {"a.b": "c"})
    assert record.read_text() == "discovery.type = sendtargets\na.b = c\n"


def test_a_record_that_is_not_there_and_names_that_lead_elsewhere_are_told(tmp_path: Path) -> None:
    database = ISCSIDatabase((tmp_path,))
    with pytest.raises(ISCSIDatabaseError, match="no record where one is expected"):
        database.set_node(TARGET, "3260", "default", CHAP)
    for name in ("../..", "*", "a/b", ""):
        with pytest.raises(ISCSIDatabaseError, match="cannot name a record"):
            database.set_node(name, "3260", "default", CHAP)


def recorded_session(sys: Path) -> Path:
    """A session as the kernel 7.2 showed it, with LUN 1 as `sda`; returns its device's folder."""
    session = sys / "devices/platform/host2/session1"
    shown = session / "iscsi_session/session1"
    connection = session / "connection1:0/iscsi_connection/connection1:0"
    for folder in (shown, connection, session / "target2:0:0/2:0:0:1/block/sda"):
        folder.mkdir(parents=True)
    (shown / "device").symlink_to("../..")
    (shown / "targetname").write_text(f"{TARGET}\n")
    (shown / "ifacename").write_text("default\n")
    (connection / "persistent_address").write_text("127.0.0.1\n")
    (connection / "persistent_port").write_text("3260\n")
    (sys / "class/iscsi_session").mkdir(parents=True)
    (sys / "class/iscsi_session/session1").symlink_to(
        "../../devices/platform/host2/session1/iscsi_session/session1"
    )
    return session


def test_sessions_and_their_disks_are_read_off_sysfs(tmp_path: Path) -> None:
    folder = recorded_session(tmp_path)
    disks = SCSIDisks(sys=tmp_path)
    (session,) = disks.sessions()
    assert session.folder == folder.resolve()
    assert (session.target, session.interface) == (TARGET, "default")
    assert (session.address, session.port) == ("127.0.0.1", "3260")
    assert disks.disks_of_session(session) == {1: "sda"}
