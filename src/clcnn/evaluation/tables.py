"""TOML tables with checked values: an error names the file, the table, the key and near names."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clcnn.errors import ClcnnError

MOST_SEED = 2**32 - 1
"""The largest seed that all generators take."""


class PlanError(ClcnnError, ValueError):
    """A plan cannot be understood, or asks for what there is not."""


class UnpreparedError(PlanError):
    """A plan is right, but networks or chosen settings that it needs are not there yet."""


class Table:
    """The values of one table; each is taken by `get` and its kin, and `end` refuses the rest."""

    def __init__(self, where: str, name: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.name = name
        self.values = dict(values)
        self._taken: list[str] = []

    def error(self, key: str | None, found: str, expected: str) -> PlanError:
        """file, table, key: what was found and what was expected."""
        place = ", ".join([self.where, *([f"[{self.name}]"] if self.name else [])])
        key = "" if key is None else f", {key}"
        end = "" if expected.endswith("?") else "."
        return PlanError(f"{place}{key}: found {found}; expected {expected}{end}")

    def get(self, key: str, kinds: tuple[type, ...], expected: str, default: Any = None) -> Any:
        """The value of a key, of one of ``kinds``; ``default`` where it is not given."""
        self._taken.append(key)
        if key not in self.values:
            return default
        value = self.values[key]
        # bool is an int to Python, but `steps = true` is a mistake.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(key, shown(value), expected)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default it has to be there."""
        value = self.get(key, (str,), "a string", default)
        if value is None:
            raise self.error(key, "nothing", f'a string: {key} = "..."')
        return str(value)

    def whole(self, key: str, default: int, least: int = 1, most: int | None = None) -> int:
        """A whole number of at least ``least`` and at most ``most``."""
        value = int(self.get(key, (int,), "a whole number", default))
        if value < least:
            raise self.error(key, str(value), f"a whole number of at least {least}")
        if most is not None and value > most:
            raise self.error(key, str(value), f"a whole number of at most {most}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return bool(self.get(key, (bool,), "true or false", default))

    def choice(self, key: str, options: Iterable[str], default: str | None = None) -> str:
        """One of ``options``."""
        value = self.text(key, default)
        self.known(key, [value], options)
        return value

    def names(self, key: str, options: Iterable[str], default: Iterable[str]) -> tuple[str, ...]:
        """A list of strings, each one of ``options``."""
        values = self.get(key, (list,), "a list of names", list(default))
        for value in values:
            if not isinstance(value, str):
                raise self.error(key, shown(value), "names in quotes")
        self.known(key, values, options)
        return tuple(values)

    def known(self, key: str | None, values: Iterable[str], options: Iterable[str]) -> None:
        """Refuse a name that is not one of ``options``, and say which is near."""
        options = list(options)
        for value in values:
            if value not in options:
                expected = f"one of {', '.join(options)}" if options else "none, as there are none"
                raise self.error(key, f"{value!r}", expected + hint(value, options))

    def table(self, key: str) -> Table:
        """A table within this one, empty where it is not given."""
        value = self.get(key, (dict,), "a table", {})
        return Table(self.where, f"{self.name}.{key}".lstrip("."), value)

    def tables(self, key: str) -> dict[str, Table]:
        """The tables [key.NAME] by their names."""
        inside = self.table(key)
        for name, value in inside.values.items():
            if not isinstance(value, dict):
                raise inside.error(name, shown(value), f"a table [{key}.{name}]")
        return {
            name: Table(self.where, f"{inside.name}.{name}", value)
            for name, value in inside.values.items()
        }

    def array(self, key: str) -> list[Table]:
        """The tables [[key]], in their order."""
        values = self.get(key, (list,), f"tables [[{key}]]", [])
        for value in values:
            if not isinstance(value, dict):
                raise self.error(key, shown(value), f"tables [[{key}]]")
        return [
            Table(self.where, f"{key} {place + 1}", value) for place, value in enumerate(values)
        ]

    def skip(self, *keys: str) -> None:
        """Take keys that were read from this table before."""
        self._taken += keys

    def rest(self) -> dict[str, Any]:
        """What no one has taken yet, for settings that are another's to check."""
        left = {key: value for key, value in self.values.items() if key not in self._taken}
        self._taken += left
        return left

    def end(self) -> None:
        """Refuse keys that no one asked for: a misspelt one would be a silent default."""
        for key in self.values:
            if key not in self._taken:
                expected = f"one of {', '.join(self._taken)}"
                raise self.error(None, f"the key {key!r}", expected + hint(key, self._taken))


def read(path: Path) -> Table:
    """The table of a whole TOML file."""
    try:
        return Table(str(path), "", tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PlanError(f"there is no file {path}; expected a plan in TOML.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(
            f"{path} is no TOML file ({error}); expected a plan as in docs/evaluation.md. Mend it "
            "there."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object of a whole JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"there is no file {path}; expected one that `clcnn tune` wrote.") from None
    except (OSError, ValueError) as error:
        raise PlanError(
            f"{path} is no JSON file ({error}); expected one that `clcnn tune` wrote."
        ) from error
    if not isinstance(value, dict):
        raise PlanError(f"{path} holds {shown(value)}; expected what `clcnn tune` wrote.")
    return value


def shown(value: object) -> str:
    """A value and its kind, for people."""
    kinds = {str: "a string", bool: "a truth value", dict: "a table", list: "a list"}
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} ({kinds.get(type(value), 'a number')})"


def hint(value: str, options: Iterable[str]) -> str:
    """The nearest name, if one is near."""
    near = difflib.get_close_matches(value, list(options), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""
