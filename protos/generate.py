"""Makes the Python stubs under trio_kubelet/rpc/stubs from the contracts in this folder.

    python protos/generate.py           write what changed
    python protos/generate.py --check   write nothing, name what drifted, exit 1 if anything did

Messages get the lean base of `trio_kubelet/rpc/lean.py` where it will do. Stubs are compared by
their syntax trees: the generator lays its output out with whichever formatter is installed, and
a formatter's new release is no change of a contract.
"""

import argparse
import ast
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
STUBS = PROTOS.parent / "trio_kubelet" / "rpc" / "stubs"
PLUGIN = Path(sysconfig.get_path("scripts")) / "protoc-gen-python_betterproto"

MESSAGE = re.compile(r"^class \w+\(betterproto\.Message\):\n(?:(?:    .*)?\n)+", re.MULTILINE)
"""A generated class with its body."""

RELATIVE_IMPORT = re.compile(r"^from (\.+)(\S*) import", re.MULTILINE)
"""Of the messages of another contract."""

NEEDS_ALL = re.compile(r"\b(group|optional)=")
"""Of a field: it is in a oneof, or may be absent though it is no message."""


class GenerationError(Exception):
    """The compiler is missing or refused a contract; the text is what it said."""


def generated_stubs() -> Mapping[Path, str]:
    """Compile all contracts; the result maps paths below the stubs' folder to Python source."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            f"--proto_path={PROTOS}",
            f"--plugin=protoc-gen-python_betterproto={PLUGIN}",
            f"--python_betterproto_out={folder}",
            *(str(path.relative_to(PROTOS)) for path in sorted(PROTOS.rglob("*.proto"))),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise GenerationError(done.stderr.strip())
        return {
            path: with_lean_messages(with_absolute_imports(source, path))
            for path, source in _sources(Path(folder)).items()
        }


def drifted(generated: Mapping[Path, str], committed: Mapping[Path, str]) -> tuple[Path, ...]:
    """Return, in order, the files that differ in more than layout or that only one side has."""
    return tuple(
        path
        for path in sorted({*generated, *committed})
        if path not in generated
        or path not in committed
        or ast.dump(ast.parse(generated[path])) != ast.dump(ast.parse(committed[path]))
    )


def _sources(folder: Path) -> Mapping[Path, str]:
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*.py")}


def with_absolute_imports(source: str, path: Path) -> str:
    """Have a stub at a path below the stubs' folder import others by their whole names."""
    package = (*STUBS.relative_to(PROTOS.parent).parts, *path.parent.parts)

    def absolute(match: re.Match[str]) -> str:
        above = package[: len(package) - len(match[1]) + 1]
        return f"from {'.'.join((*above, *filter(None, (match[2],))))} import"

    return RELATIVE_IMPORT.sub(absolute, source)


def with_lean_messages(source: str) -> str:
    """Give messages the lean base, except those that need what it lacks."""

    def lean(match: re.Match[str]) -> str:
        if NEEDS_ALL.search(match[0]):
            return match[0]
        return match[0].replace("betterproto.Message", "LeanMessage", 1)

    made = MESSAGE.sub(lean, source)
    if made == source:
        return source
    first_import = "import betterproto\n"
    return made.replace(
        first_import, f"{first_import}\nfrom trio_kubelet.rpc.lean import LeanMessage\n", 1
    )


def _write(generated: Mapping[Path, str], paths: tuple[Path, ...]) -> None:
    for path in paths:
        target = STUBS / path
        if path not in generated:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(generated[path])


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the stubs from the contracts.")
    parser.add_argument("--check", action="store_true", help="only say what drifted")
    check = parser.parse_args().check
    try:
        generated = generated_stubs()
    except GenerationError as error:
        print(f"protos: {error}", file=sys.stderr)
        return 2
    paths = drifted(generated, _sources(STUBS))
    for path in paths:
        print(f"protos: {path} {'drifted' if check else 'written'}")
    if check:
        return 1 if paths else 0
    _write(generated, paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
