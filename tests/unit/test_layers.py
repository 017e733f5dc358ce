"""Imports point downward: what may know whom, read off the source.

A package or module of `trio_kubelet` stands in one of the layers below and imports from its own
layer and those beneath it. A new one has to be given its place here.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

LAYERS: dict[str, set[str]] = {
    "leaves": {
        *("config", "errors", "foreign_text", "k8s", "kernel", "pod_clients", "pod_source"),
        *("rpc", "tasks", "telemetry", "tls_stream", "tracing"),
    },
    "parts": {
        *(
            "csi",
            "debugging",
            "devices",
            "dra",
            "eviction",
            "hollow",
            "logs",
            "metrics",
            "node",
            "pleg",
            "plugins",
            "probes",
            "references",
        ),
        *(
            "resource_managers",
            "resources",
            "runtime",
            "server",
            "sources",
            "stats",
            "status",
            "streaming",
            "volumes",
        ),
    },
    "sync": {"sync"},
    "ports": {"ports"},
    "agent": {"agent"},
    "command line": {"__main__", "cli"},
}
ONLY_UNDER_RPC = {"asyncio", "grpclib", "trio_asyncio"}
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
"""What of the standard library the state machines must do without: they only decide."""

RUNTIME_FOLDERS = ({"", "config"}, {"garbage", "images"}, {"lifecycle"})
"""The folders of `runtime` in layers, like `LAYERS`; "" are the modules in none of them."""

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in chain(*((ROOT / name).rglob("*.py") for name in ("trio_kubelet", "state_machines")))
}
HEIGHT = {name: height for height, names in enumerate(LAYERS.values()) for name in names}


def imports(module: str) -> set[str]:
    """The dotted names that a module imports, wherever in it."""
    tree = ast.parse(SOURCES[module].read_text())
    return set(chain.from_iterable(_imported(node) for node in ast.walk(tree)))


def ours(module: str) -> set[str]:
    """Those that are of the project."""
    return {name for name in imports(module) if name.startswith("trio_kubelet.")}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute, so that a reader sees which way they point"
        yield from (f"{node.module}.{name.name}" for name in node.names)


def place(dotted: str) -> str:
    """The part of `trio_kubelet` that a dotted name belongs to; empty for the package itself."""
    name = dotted.split(".")[1]
    inside = ROOT / "trio_kubelet" / name
    return name if inside.is_dir() or inside.with_suffix(".py").exists() else ""


def runtime_height(dotted: str) -> int:
    """The layer within `runtime` of a dotted name in it."""
    name = ".".join(dotted.split(".")[2:3])
    folder = name if name and (ROOT / "trio_kubelet/runtime" / name).is_dir() else ""
    return next(height for height, names in enumerate(RUNTIME_FOLDERS) if folder in names)


def under(package: str) -> list[str]:
    return sorted(name for name in SOURCES if name == package or name.startswith(f"{package}."))


def test_every_package_has_its_layer() -> None:
    places = {place(name) for name in under("trio_kubelet")} - {"", "__init__"}
    assert places <= HEIGHT.keys()


def test_the_map_in_the_docs_shows_every_package_and_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    shown = set(re.findall(r"\b(\w+)(?:/|\.py)", text[: text.index("Imports point downward")]))
    assert {place(name) for name in under("trio_kubelet")} - {"", "__init__", "__main__"} <= shown


def test_the_map_in_the_docs_shows_each_table_and_each_stage_of_the_agent() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    shown = set(re.findall(r"\w+", text[: text.index("Imports point downward")]))
    modules = {*under("state_machines"), *under("trio_kubelet.agent")}
    names = {name.rpartition(".")[2] for name in modules}
    assert names - {"__init__", "mermaid"} <= shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_the_docs_name_are_there(page: str) -> None:
    paths = {str(path) for path in SOURCES.values()}
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    missing = {
        name
        for name in named
        if not (ROOT / name).exists() and not any(path.endswith(f"/{name}") for path in paths)
    }
    assert missing == set()


@pytest.mark.parametrize("module", under("trio_kubelet"))
def test_a_module_imports_from_its_own_layer_and_those_beneath(module: str) -> None:
    own = HEIGHT.get(place(module), -1)
    assert {name for name in ours(module) if place(name) and HEIGHT[place(name)] > own} == set()


def test_no_package_imports_one_that_imports_it() -> None:
    imported = {
        package: {
            place(name) for module in under(f"trio_kubelet.{package}") for name in ours(module)
        }
        - {package, ""}
        for package in HEIGHT
    }
    while leaves := {package for package, others in imported.items() if not others}:
        imported = {
            package: others - leaves
            for package, others in imported.items()
            if package not in leaves
        }
    assert imported == {}


@pytest.mark.parametrize("module", under("trio_kubelet.runtime"))
def test_a_folder_of_the_runtime_imports_from_its_own_layer_and_those_beneath(module: str) -> None:
    own = runtime_height(module)
    ours = (name for name in imports(module) if name.startswith("trio_kubelet.runtime."))
    assert {name for name in ours if runtime_height(name) > own} == set()


@pytest.mark.parametrize("module", under("state_machines"))
def test_the_state_machines_import_nothing_but_the_pure_standard_library(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports(module)}
    assert roots - {"state_machines"} <= sys.stdlib_module_names - IMPURE


def test_asyncio_lives_under_rpc_alone() -> None:
    others = set(SOURCES) - set(under("trio_kubelet.rpc"))
    roots = {
        module: {name.partition(".")[0] for name in imports(module)} & ONLY_UNDER_RPC
        for module in others
    }
    assert {module: found for module, found in roots.items() if found} == {}


def test_containers_and_sandboxes_leave_the_runtime_by_one_way() -> None:
    ours = set(SOURCES) - set(under("trio_kubelet.rpc")) - set(under("trio_kubelet.hollow"))
    calls = (".remove_container(", ".remove_pod_sandbox(")
    found = {name for name in ours if any(call in SOURCES[name].read_text() for call in calls)}
    assert found == {"trio_kubelet.runtime.garbage.removal"}


def test_no_two_classes_that_others_use_have_one_name() -> None:
    ours = set(SOURCES) - set(under("trio_kubelet.rpc.stubs"))
    classes = Counter(
        node.name
        for module in ours
        for node in ast.walk(ast.parse(SOURCES[module].read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in classes.items() if times > 1} == set()


def test_the_rule_sees_an_import_that_points_upward() -> None:
    assert imports("trio_kubelet.agent.start")
    assert HEIGHT["sync"] > HEIGHT["pleg"] > HEIGHT["rpc"]
    assert "asyncio.BaseTransport" in imports("trio_kubelet.rpc.server")
    assert place("trio_kubelet.KUBERNETES_VERSION") == ""
    assert place("trio_kubelet.sync.loop.SyncLoop") == "sync"
