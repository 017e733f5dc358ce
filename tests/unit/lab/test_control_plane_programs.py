"""Where the programs of a control plane come from."""

from pathlib import Path

import pytest

from lab import UnavailableError
from lab.__main__ import main
from lab.control_plane_programs import CONTROL_PLANE, MODULES, NEWEST, SOURCE, find, is_at_hand


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def install(folder: Path, *names: str, version: str = "v1.36.9") -> Path:
    """Programs that do no more than tell their version."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (folder / name).chmod(0o755)
    return folder


def test_a_folder_that_has_them_all_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = install(tmp_path / "some", "etcd", "kubectl")
    every = install(tmp_path / "all", *CONTROL_PLANE)
    monkeypatch.setenv("PATH", f"{some}:{every}")
    found = find("1.36", cache=tmp_path)
    assert (found.version, found["etcd"]) == ("v1.36.9", every / "etcd")


def test_assets_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = install(tmp_path / "assets", *CONTROL_PLANE, version="v1.36.1")
    monkeypatch.setenv("PATH", str(install(tmp_path / "path", *CONTROL_PLANE)))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert find("1.36", cache=tmp_path).version == "v1.36.1"


def test_programs_of_another_version_in_the_path_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = install(tmp_path / "older", *CONTROL_PLANE, version="v1.35.0")
    newer = install(tmp_path / "newer", *CONTROL_PLANE)
    monkeypatch.setenv("PATH", f"{older}:{newer}")
    assert find("1.36", cache=tmp_path).folder == newer


def test_assets_that_do_not_fit_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = install(tmp_path, *CONTROL_PLANE, version="v1.35.0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    with pytest.raises(UnavailableError, match=r"v1\.35\.0, not 1\.36"):
        find("1.36", cache=tmp_path)
    (assets / "etcd").unlink()
    with pytest.raises(UnavailableError, match="lacks some of"):
        find("1.36", cache=tmp_path)


def test_without_programs_and_without_go_both_are_named(tmp_path: Path) -> None:
    assert not is_at_hand(cache=tmp_path)
    with pytest.raises(UnavailableError, match=r"KUBEBUILDER_ASSETS nor PATH .* no Go toolchain"):
        find(cache=tmp_path)


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--if-possible",), 0)])
def test_by_hand_it_is_an_error_that_they_cannot_be_had_unless_one_says_so(
    options: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["control-plane-programs", *options]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert "no Go toolchain" in line


def test_a_version_that_nobody_pinned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no control plane 1\.20: there are 1\.36"):
        find("1.20", cache=tmp_path)


@pytest.mark.parametrize("minor", MODULES)
def test_every_module_file_pins_all_of_kubernetes_to_its_version(minor: str) -> None:
    lines = (SOURCE / MODULES[minor]).read_text().splitlines()
    (kubernetes,) = {line.split()[1] for line in lines if "k8s.io/kubernetes v" in line}
    staging = {line.split()[3] for line in lines if "=>" in line}
    assert kubernetes.startswith(f"v{minor}.")
    assert staging == {kubernetes.replace("v1.", "v0.")}
    assert NEWEST in MODULES
