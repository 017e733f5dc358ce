"""The wire contract says what the facts table says, and the stubs say what the contract says."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

grpc_tools = pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]  # noqa: E402

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
FACTS = ROOT / "tests" / "facts"
CRI = "runtime/v1/api.proto"
CONTRACTS = {
    CRI: "cri-runtime-v1.tsv",
    "dra/v1/api.proto": "dra-v1.tsv",
    "drahealth/v1/api.proto": "dra-health-v1.tsv",
    "csi/v1/csi.proto": "csi-v1.tsv",
    "deviceplugin/v1beta1/api.proto": "deviceplugin-v1beta1.tsv",
    "pluginregistration/v1/api.proto": "pluginregistration-v1.tsv",
    "podresources/v1/api.proto": "podresources-v1.tsv",
    "pods/v1alpha1/api.proto": "pods-v1alpha1.tsv",
}

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in Field.Type.items()}


def facts(path: str) -> set[tuple[str, ...]]:
    rows = (line.split("\t") for line in (FACTS / CONTRACTS[path]).read_text().splitlines())
    return {tuple(cell for cell in row if cell not in ("", "-")) for row in rows}


def contract(tmp_path: Path, path: str = CRI) -> descriptor_pb2.FileDescriptorProto:
    compiled = tmp_path / "descriptors"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"),
            *(f"--descriptor_set_out={compiled}", path),
        ],
        check=True,
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    (file,) = files.file
    return file


def described(file: descriptor_pb2.FileDescriptorProto) -> set[tuple[str, ...]]:
    """The contract in the words of the facts table."""
    rows: set[tuple[str, ...]] = {("package", file.package)}
    for service in file.service:
        for method in service.method:
            answer = _local(file, method.output_type)
            if method.server_streaming:
                answer = f"stream {answer}"
            assert not method.client_streaming
            request = _local(file, method.input_type)
            rows.add(("rpc", service.name, method.name, request, answer))
    for enum in file.enum_type:
        rows |= {("enum", enum.name, value.name, str(value.number)) for value in enum.value}
    for message in file.message_type:
        rows |= _message_rows(file, message, message.name)
    return rows


def _message_rows(
    file: descriptor_pb2.FileDescriptorProto,
    message: descriptor_pb2.DescriptorProto,
    message_name: str,
) -> set[tuple[str, ...]]:
    own: set[tuple[str, ...]] = set()
    rows: set[tuple[str, ...]] = set()
    maps = {}
    for nested in message.nested_type:
        if nested.options.map_entry:
            key, value = nested.field
            maps[nested.name] = f"map<{_type(file, key)},{_type(file, value)}>"
        else:
            rows |= _message_rows(file, nested, f"{message_name}.{nested.name}")
    for enum in message.enum_type:
        name = f"{message_name}.{enum.name}"
        rows |= {("enum", name, value.name, str(value.number)) for value in enum.value}
    for field in message.field:
        row = ("field", message_name, field.name, str(field.number))
        entry = field.type_name.rpartition(".")[2]
        if entry in maps:
            own.add((*row, maps[entry]))
        elif field.label == Field.LABEL_REPEATED:
            own.add((*row, _type(file, field), "repeated"))
        elif field.HasField("oneof_index"):
            oneof = message.oneof_decl[field.oneof_index].name
            own.add((*row, _type(file, field), f"oneof {oneof}"))
        else:
            own.add((*row, _type(file, field)))
    if not own and not rows:
        return {("message", message_name)}
    return own | rows


def _type(
    file: descriptor_pb2.FileDescriptorProto, field: descriptor_pb2.FieldDescriptorProto
) -> str:
    return _local(file, field.type_name) if field.type_name else SCALARS[field.type]


def _local(file: descriptor_pb2.FileDescriptorProto, name: str) -> str:
    return name.removeprefix(f".{file.package}.").removeprefix(".")


def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", PROTOS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CONTRACTS)
def test_the_contract_has_every_row_of_the_facts_table_and_no_other(
    tmp_path: Path, path: str
) -> None:
    ours = described(contract(tmp_path, path))
    table = facts(path)
    if path.startswith("csi/"):  # of the calls of controllers some are left out
        mentioned = {row[1] for row in ours}
        left_out = {row for row in table if row[:2] == ("rpc", "Controller")} - ours
        table = {row for row in table if row[1] in mentioned} - left_out
    assert ours - table == set()
    assert table - ours == set()


def test_the_stubs_are_what_the_contract_generates() -> None:
    pytest.importorskip("black", reason="the betterproto compiler is not installed")
    pytest.importorskip("jinja2", reason="the betterproto compiler is not installed")
    tool = generate()
    stubs = {path.relative_to(tool.STUBS): path.read_text() for path in tool.STUBS.rglob("*.py")}
    assert tool.drifted(tool.generated_stubs(), stubs) == ()


GENERATED = """\
import betterproto


@dataclass(eq=False, repr=False)
class Plain(betterproto.Message):
    \"\"\"Text.\"\"\"

    name: str = betterproto.string_field(1)


@dataclass(eq=False, repr=False)
class Choice(betterproto.Message):
    either: str = betterproto.string_field(1, group="choice")


@dataclass(eq=False, repr=False)
class Maybe(betterproto.Message):
    number: Optional[int] = betterproto.int64_field(1, optional=True)


@dataclass(eq=False, repr=False)
class Nothing(betterproto.Message):
    pass
"""


def test_messages_with_oneofs_and_optional_fields_keep_the_full_base() -> None:
    made = generate().with_lean_messages(GENERATED)
    assert [line for line in made.splitlines() if line.startswith("class")] == [
        "class Plain(LeanMessage):",
        "class Choice(betterproto.Message):",
        "class Maybe(betterproto.Message):",
        "class Nothing(LeanMessage):",
    ]
    assert made.count("import LeanMessage\n") == 1


def test_no_field_is_a_message_without_fields(tmp_path: Path) -> None:
    """A lean message would not send it: betterproto marks such a field when it is assigned."""
    rows = described(contract(tmp_path))
    without_fields = {row[1] for row in rows if row[0] == "message"}
    assert without_fields
    assert not [row for row in rows if row[0] == "field" and row[4] in without_fields]


def test_drift_is_a_difference_in_meaning_not_in_layout() -> None:
    drifted = generate().drifted
    committed = {Path("a.py"): "x = [1,\n2]\n", Path("b.py"): "y = 1\n"}
    assert drifted({Path("a.py"): "x = [1, 2]\n", Path("b.py"): "y = 1\n"}, committed) == ()
    assert drifted({Path("a.py"): "x = [1, 3]\n", Path("b.py"): "y = 1\n"}, committed) == (
        Path("a.py"),
    )
    assert drifted({Path("a.py"): "x = [1, 2]\n"}, committed) == (Path("b.py"),)
