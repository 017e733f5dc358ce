"""IntOrString: a number or a name, as ports of probes are."""

from attrs import frozen


@frozen(repr=False)
class IntOrString:
    """Either an integer (32 bits) or a text; on the wire each stays what it is."""

    value: int | str

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"IntOrString({self.value!r})"
