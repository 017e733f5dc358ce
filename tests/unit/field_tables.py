"""Pages of docs/ that have a row for each field of some types, and the API's facts beside them.

A page is the table: a heading with one or more types, and below it a row for each of their
fields, or `*` for all that have none of their own.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

from attrs import fields, frozen

import trio_kubelet.k8s as k8s
from trio_kubelet.k8s.base import ApiType, wire_name

ROOT = Path(__file__).parents[2]
CODE = ROOT / "trio_kubelet"
FACTS = ROOT / "tests" / "facts" / "kubernetes-api-1.36.tsv"

PYTHON_NAMES = {
    (cls.__name__, wire_name(attribute)): attribute.name
    for cls in vars(k8s).values()
    if isinstance(cls, type) and issubclass(cls, ApiType) and cls is not ApiType
    for attribute in fields(cls)
}

Facts = Mapping[str, Mapping[str, str]]
"""Kinds by type and field. Names of types are without their group."""


@frozen(kw_only=True)
class Row:
    """One line of a page; `field` may be `*`."""

    types: tuple[str, ...]
    field: str
    treatment: str
    why: str

    @property
    def name(self) -> str:
        return f"{'+'.join(self.types)}.{self.field}"

    @property
    def capability(self) -> str:
        """What is missing, where it is something that the agent will have."""
        before, colon, _ = self.why.partition(": ")
        return before if colon else ""


@frozen
class Page:
    """The rows of a page, and the fields that it is to have."""

    facts: Facts
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, name: str, facts: Facts) -> Self:
        """Read a page of docs/."""
        return cls(facts, tuple(_rows((ROOT / "docs" / name).read_text())))

    def rows_of(self, type_name: str, field: str) -> list[Row]:
        """The rows for one field; its own one counts alone."""
        of_type = [row for row in self.rows if type_name in row.types]
        own = [row for row in of_type if row.field == field]
        return own or [row for row in of_type if row.field == "*"]

    def covered(self, row: Row) -> Iterator[tuple[str, str]]:
        """Type and field of all that a row speaks of."""
        for type_name in row.types:
            for name in self.facts.get(type_name, ()):
                if self.rows_of(type_name, name) == [row]:
                    yield type_name, name

    def treated(self, treatment: str) -> set[tuple[str, str]]:
        """Type and field of all that is treated so."""
        return {
            each for row in self.rows if row.treatment == treatment for each in self.covered(row)
        }

    def assert_complete(self, treatments: Collection[str]) -> None:
        """One row for each field, and none for others; each treatment occurs."""
        counts = {
            (type_name, name): len(self.rows_of(type_name, name))
            for type_name, kinds in self.facts.items()
            for name in kinds
        }
        assert {each: count for each, count in counts.items() if count != 1} == {}
        unknown = [
            row.name
            for row in self.rows
            for type_name in row.types
            if type_name not in self.facts
            or (row.field != "*" and row.field not in self.facts[type_name])
        ]
        assert unknown == []
        assert [row.name for row in self.rows if not list(self.covered(row))] == []
        assert {row.treatment for row in self.rows} == set(treatments)


def read_facts(first: str, without: Collection[str] = ()) -> Facts:
    """Kinds by type and field, of all types from `first` down but for those that are left out."""
    facts: dict[str, dict[str, str]] = {}
    for line in FACTS.read_text().splitlines():
        what, type_name, *columns = line.split("\t")
        if what == "field":
            facts.setdefault(type_name, {})[columns[0]] = columns[1]
    reached, ahead = dict[str, Mapping[str, str]](), [first]
    while ahead:
        type_name = ahead.pop()
        if type_name in without or short(type_name) in reached:
            continue
        reached[short(type_name)] = facts[type_name]
        kinds = (kind.strip("[]") for kind in facts[type_name].values())
        ahead += [kind for kind in kinds if kind in facts]
    return reached


def short(type_name: str) -> str:
    return type_name.strip("[]").rpartition(".")[2]


def missing_capabilities() -> str:
    """What docs/differences.md says of what is not there, in small letters."""
    text = (ROOT / "docs" / "differences.md").read_text().lower()
    return text.partition("## not there\n")[2]


def _rows(text: str) -> Iterator[Row]:
    types: tuple[str, ...] = ()
    for line in text.splitlines():
        if line.startswith("#"):
            types = tuple(line.removeprefix("### ").split(", ")) if line[:4] == "### " else ()
        elif types and line.startswith("| ") and not line.startswith("| field "):
            name, treatment, why = (cell.strip() for cell in line.strip("|").split(" | "))
            yield Row(types=types, field=name, treatment=treatment, why=why)
