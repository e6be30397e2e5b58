"""The manifests on the page: each fact once, none lost."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from report.made import change, fill, read

from clcnn.report import make_report
from clcnn.report.blocks import Block, Code, Details, TableBlock
from clcnn.report.made import compact, grid, otherwise

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


@given(JSON)
def test_compact_json_says_the_same(value: object) -> None:
    assert json.loads(compact(value)) == json.loads(json.dumps(value))


def test_compact_json_breaks_lines_only_where_it_must() -> None:
    assert compact({"b": [1, 2], "a": None}) == '{"a": null, "b": [1, 2]}'
    long = compact({"short": {"x": 1}, "long": ["y" * 60, "z" * 60]})
    assert long.splitlines() == [
        "{",
        ' "long": [',
        f'  "{"y" * 60}",',
        f'  "{"z" * 60}"',
        " ],",
        ' "short": {"x": 1}',
        "}",
    ]


def test_compact_json_puts_short_entries_side_by_side() -> None:
    numbers = list(range(100_000, 100_030))
    lines = compact({"a": 1, "b": 2, "c": numbers}).splitlines()
    assert lines[1] == ' "a": 1, "b": 2,'
    assert max(map(len, lines)) <= 111, "110 and the comma at the end"
    assert all(len(line) + len(" 100000,") > 110 for line in lines[3:-3]), "as many as fit"


def test_differences_say_what_is_there_and_what_is_not() -> None:
    ours = {"plan": {"seed": 0, "none": None, "attacks": {"pgd": {"steps": 20}}}, "git": "a"}
    theirs = {"plan": {"seed": 1, "attacks": {"pgd": {"steps": 20}}, "chunk": 8}, "git": "a"}
    assert list(otherwise(ours, theirs)) == [
        ("plan / chunk", "absent"),
        ("plan / none", None),
        ("plan / seed", 0),
    ]
    assert list(otherwise(ours, ours)) == []


def test_a_grid_has_its_first_point_whole_and_the_others_by_their_difference() -> None:
    first = {"net": {"lr": 0.001, "embedding": {"energy": 0.99, "seed": 0}}}
    other = {"net": {"lr": 0.002, "embedding": {"energy": 0.9, "seed": 0}}}
    assert grid({"b": other, "a": first}) == {
        "a": first,
        "b": {"as": "a", "but": {"net / embedding / energy": 0.9, "net / lr": 0.002}},
    }


def made(store: Path) -> list[Block]:
    blocks = list(make_report([store], pictures=0).blocks)
    place = next(i for i, b in enumerate(blocks) if getattr(b, "anchor", "") == "manifest")
    return blocks[place + 1 :]


def test_runs_of_one_plan_stand_once_with_their_differences(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    change(
        store,
        "INSERT INTO runs (started, manifest) "
        """SELECT '2031-01-01T00:00:00Z', replace(manifest, '"seed": 0', '"seed": 77') FROM runs""",
    )
    (first, again) = read(store, "SELECT manifest FROM runs ORDER BY id")
    assert first != again
    environments, runs, environment, manifest = made(store)
    assert isinstance(environments, TableBlock)
    assert isinstance(runs, TableBlock)
    assert [len(environments.rows), len(runs.rows)] == [1, 1]
    assert runs.rows[0].cells[-1][0].text.endswith("(2)")
    assert isinstance(environment, Details)
    assert isinstance(manifest, Details)
    shown = json.loads(_codes(environment)[0])
    latest, earlier = _codes(manifest)
    own = json.loads(latest)
    assert own.pop("environment") == 1
    assert shown | own == json.loads(str(again[0]))
    assert earlier.splitlines() == [
        f"plan / defences / {defence} / tiny / {part} / seed: 0"
        for defence in ("linear", "reactive")
        for part in ("embedding", "fit")
    ]


def test_another_machine_is_another_environment(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    change(
        store,
        "INSERT INTO runs (started, manifest) "
        """SELECT '2031-01-01T00:00:00Z', replace(manifest, '"cpu"', '"cuda"') FROM runs""",
    )
    environments, runs, *_, manifest = made(store)
    assert isinstance(environments, TableBlock)
    assert isinstance(runs, TableBlock)
    assert [row.heads for row in environments.rows] == [("1",), ("2",)]
    assert len(runs.rows) == 2
    assert isinstance(manifest, Details)
    assert _codes(manifest)[1] == "environment: 1"


def _codes(details: Details) -> list[str]:
    return [block.text for block in details.blocks if isinstance(block, Code)]
