"""No function takes more than six parameters: what belongs together is a value that names it.

Counted are the parameters of functions, methods and constructors that are written out, but
for `self`, `cls` and trio's `task_status`. The fields of attrs classes are not: such a class is
the value that names them. Nor are commands of click, whose parameters are the command line.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

MOST = 6
ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for path in chain(
        (ROOT / "trio_kubelet").rglob("*.py"), (ROOT / "state_machines").rglob("*.py")
    )
    if "stubs" not in path.parts
)
UNCOUNTED = {"self", "cls", "task_status"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_many(tree: ast.AST, name: str) -> Iterator[str]:
    """The dotted names of the functions below a node that take too many parameters."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            inside = f"{name}.{node.name}"
            if isinstance(node, Function) and not is_command(node) and number(node) > MOST:
                yield inside
            yield from too_many(node, inside)
        else:
            yield from too_many(node, name)


def number(function: Function) -> int:
    taken = function.args
    named = (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)
    return sum(each.arg not in UNCOUNTED for each in named)


def is_command(function: Function) -> bool:
    return any("click.command" in ast.unparse(each) for each in function.decorator_list)


def test_no_function_takes_more_than_six_parameters() -> None:
    found = set()
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[1:] if parts[0] == "trio_kubelet" else parts)
        found |= set(too_many(ast.parse(path.read_text()), name))
    assert found == set()


def test_parameters_of_every_kind_are_counted() -> None:
    counted = "class A:\n    async def f(self, a, /, b, c, *, d, e, f, g): pass\n"
    named = "def few(a, b, c, *args, d, e, f, task_status, **more): pass\n"
    assert list(too_many(ast.parse(counted + named), "m")) == ["m.A.f"]
