"""Parameters of mechanisms: everything that a value must meet, said once, as a check and as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from accountant.errors import InvalidInput
from accountant.units import Range, real, whole

ParameterKind: TypeAlias = Literal["number", "integer", "boolean", "string", "array"]


class _Required(Enum):
    REQUIRED = "required"


#: The default of a parameter that must be given.
REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the largest value of a number, or length of an array; None where there is no bound."""

    minimum: float | None = None
    exclusive_minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a value is inside."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.exclusive_minimum is None or value > self.exclusive_minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.exclusive_maximum is None or value < self.exclusive_maximum)
        )

    def __str__(self) -> str:
        """As an interval.

        >>> print(Bounds(exclusive_minimum=0, maximum=1))
        (0, 1]
        """
        low = f"[{self.minimum:g}" if self.minimum is not None else f"({_shown(self.exclusive_minimum, '-∞')}"
        high = f"{self.maximum:g}]" if self.maximum is not None else f"{_shown(self.exclusive_maximum, '∞')})"
        return f"{low}, {high}"


#: Of noise: sums are rounded to a share of it, and with much less that share is no float.
NOISES: Final = Bounds(minimum=1e-6)


def _shown(bound: float | None, otherwise: str) -> str:
    return otherwise if bound is None else f"{bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a mechanism, with everything that a value must meet.

    A `number` and an `integer` have `bounds`, a `string` is one of its `choices` or, if it has none, any text of a
    length within `bounds`, and an `array` is a list of a length within `bounds`: of objects with the fields `items`, or
    of plain values that are each like `each`. `when` names another parameter and its value: only then is this
    one read, and otherwise it must be absent, since a parameter without effect is a misunderstanding.
    """

    name: str
    kind: ParameterKind
    description: str
    bounds: Bounds = Bounds()
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    items: tuple[Parameter, ...] = ()
    each: Parameter | None = None
    when: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        bounded = self.bounds.minimum is not None and self.bounds.maximum is not None
        limited = self.kind in ("integer", "array") or (self.kind == "string" and not self.choices)
        assert bounded or not limited, f"{self.name} needs both bounds"
        assert self.kind == "string" or not self.choices, f"{self.name} has choices but is no string"
        of_what = bool(self.items) + (self.each is not None)
        assert of_what == (self.kind == "array"), f"{self.name} is an array exactly if it has items or each"

    def read(self, path: str, value: object) -> Any:
        """`value` as this parameter, or an error that names the path and says what it must be.

        A whole number may be written 3 or 3.0, which JSON does not tell apart.
        """
        match self.kind:
            case "number":
                return real(path, value, Range(f"a finite number in {self.bounds}", self.bounds.contains))
            case "integer":
                if isinstance(value, float) and value.is_integer():
                    value = int(value)
                return whole(path, value, least=int(self.bounds.minimum or 0), most=int(self.bounds.maximum or 0))
            case "boolean":
                if not isinstance(value, bool):
                    raise InvalidInput(path, value, "true or false")
                return value
            case "string" if self.choices:
                if not isinstance(value, str) or value not in self.choices:
                    raise InvalidInput(path, value, " or ".join(map(repr, self.choices)))
                return value
            case "string":
                if not isinstance(value, str) or not self.bounds.contains(len(value)):
                    raise InvalidInput(path, value, f"a text of a length in {self.bounds}")
                return value
            case "array":
                if not isinstance(value, list | tuple) or not self.bounds.contains(len(value)):
                    what = "objects" if self.items else "values"
                    raise InvalidInput(
                        path, value, f"a list of {self.bounds.minimum:g} to {self.bounds.maximum:g} {what}"
                    )
                if self.each is not None:
                    return [self.each.read(f"{path}[{place}]", item) for place, item in enumerate(value)]
                return [read(f"{path}[{place}]", self.items, item) for place, item in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a value."""
        described: dict[str, Any] = {"type": self.kind, "description": self.description}
        words = _LIMITS_OF.get(self.kind, _LIMITS)
        limits = (
            self.bounds.minimum,
            self.bounds.exclusive_minimum,
            self.bounds.maximum,
            self.bounds.exclusive_maximum,
        )
        described |= {word: limit for word, limit in zip(words, limits, strict=True) if word and limit is not None}
        if self.choices:
            described["enum"] = list(self.choices)
        if self.items:
            described["items"] = object_schema(self.items)
        if self.each is not None:
            described["items"] = self.each.schema()
        if self.default is not REQUIRED:
            described["default"] = self.default
        return described


_LIMITS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_LIMITS_OF: Final = {"array": ("minItems", None, "maxItems", None), "string": ("minLength", None, "maxLength", None)}


def read(path: str, parameters: Sequence[Parameter], given: object) -> dict[str, Any]:
    """Every parameter with its value, or an error for the first that is unknown, missing, out of place or wrong."""
    names = ", ".join(parameter.name for parameter in parameters)
    if not isinstance(given, Mapping):
        raise InvalidInput(path, given, f"an object with {names}")
    for name in given:
        if not any(name == parameter.name for parameter in parameters):
            shown = name if isinstance(name, str) else "a name that is no text"
            raise InvalidInput(f"{path}.{shown}", given[name], f"nothing: there are {names} and no others")
    values: dict[str, Any] = {}
    for parameter in parameters:
        name, at = parameter.name, f"{path}.{parameter.name}"
        if parameter.when and values[parameter.when[0]] != parameter.when[1]:
            if name in given:
                other, value = parameter.when
                raise InvalidInput(at, given[name], f"nothing: it is read only if {other} is {value!r}")
        elif name in given:
            values[name] = parameter.read(at, given[name])
        elif parameter.default is REQUIRED:
            raise InvalidInput(at, "nothing", f"a value: {parameter.description}")
        else:
            values[name] = parameter.default
    return values


def object_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON Schema of an object with these fields and no others."""
    described: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: parameter.schema() for parameter in parameters},
        "required": [each.name for each in parameters if each.default is REQUIRED and not each.when],
        "additionalProperties": False,
    }
    conditions = [_condition_schema(each, parameters) for each in parameters if each.when]
    return described | ({"allOf": conditions} if conditions else {})


def _condition_schema(parameter: Parameter, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Given where it is read, absent elsewhere."""
    assert parameter.when
    other, value = parameter.when
    condition: dict[str, Any] = {"properties": {other: {"const": value}}}
    if next(each.default for each in parameters if each.name == other) != value:
        condition["required"] = [other]  # the absent parameter has another value
    return {
        "if": condition,
        "then": {"required": [parameter.name] if parameter.default is REQUIRED else []},
        "else": {"properties": {parameter.name: False}},
    }
