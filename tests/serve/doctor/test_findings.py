"""Findings of a model with variants, and codes of rules that were merged or dropped."""

import json
from pathlib import Path

import pytest

from serve.doctor.__main__ import main
from serve.doctor.example import completed, write
from serve.doctor.rule import DROPPED, MERGED, RULES, Example
from serve.doctor.rules import all_rules

assert all_rules()
VARIANTS = {"large": 32, "small": 2}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose config.pbtxt and variants lack dynamic_batching, with another max_batch_size each."""
    configs = {f"configs/{name}.pbtxt": completed(f"max_batch_size: {size}") for name, size in VARIANTS.items()}
    return write(Example("max_batch_size: 8", files=configs), tmp_path)


def findings(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, object]]:
    main([*map(str, arguments), "--format", "json"])
    entries: list[dict[str, object]] = json.loads(capsys.readouterr().out)["findings"]
    return entries


def test_variants_share_a_finding(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = findings(capsys, model)
    assert finding["code"] == "B201"
    assert finding["path"] == str(model / "config.pbtxt")
    assert str(finding["message"]).endswith("Add dynamic_batching { }. (config.pbtxt and 2 variants: large, small)")
    assert finding["also_in"] == [str(model / "configs" / f"{name}.pbtxt") for name in VARIANTS]


def test_a_variant_can_be_ignored_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model / "config.pbtxt"
    path.write_text(f"# doctor: ignore=B201 in=large it is a baseline\n{path.read_text()}")
    (finding,) = findings(capsys, model)
    assert str(finding["message"]).endswith("(config.pbtxt and 1 variant: small)")


def test_two_groups_of_a_file_stay_two_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'backend: "python"\ninstance_group [ { count: 2000 }, { count: 3000 } ]'
    write(Example(text, files={"configs/other.pbtxt": completed(text)}), tmp_path)
    messages = [str(finding["message"]) for finding in findings(capsys, tmp_path, "--select", "I409")]
    assert [("2000" in message, "3000" in message) for message in messages] == [(True, False), (False, True)]
    assert all(message.endswith("(config.pbtxt and 1 variant: other)") for message in messages)


def test_all_variants_are_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = {f"configs/{number}.pbtxt": completed('name: "other"') for number in range(12)}
    write(Example('name: "other"', files=configs), tmp_path)
    assert len(findings(capsys, tmp_path, "--select", "L003")) == 1
    assert findings(capsys, tmp_path, "--select", "L003", "--fix") == []


@pytest.mark.parametrize("code", sorted(MERGED))
def test_the_code_of_a_merged_rule_stands_for_its_new_rule(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MERGED[code] in RULES
    assert code not in RULES
    assert main(["--explain", code]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(MERGED[code])
    assert f"{code} is part of {MERGED[code]} now" in captured.err


def test_a_merged_code_ignores_in_comments_only(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As an option it would hide every finding of the larger rule.
    assert findings(capsys, model, "--ignore", "S761") == findings(capsys, model) != []
    assert findings(capsys, model, "--ignore", "B201") == []
    path = model / "config.pbtxt"
    path.write_text(f"# doctor: ignore=R301 requests run alone here\n{path.read_text()}")
    assert findings(capsys, model) == []


def test_an_unused_merged_code_is_named_with_its_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example("# doctor: ignore=B207 shapes are equal\ndynamic_batching { }"), tmp_path)
    (finding,) = findings(capsys, tmp_path, "--select", "L016,B216")
    assert "B207 is part of B216 now, which finds nothing here" in str(finding["message"])


@pytest.mark.parametrize("code", sorted(DROPPED))
def test_a_dropped_code_says_why(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code not in RULES
    write(Example(f"# doctor: ignore={code} known\nmax_batch_size: 1"), tmp_path)
    assert main([str(tmp_path), "--ignore", code]) == 0
    captured = capsys.readouterr()
    assert f"L016: {code} is no longer a rule ({DROPPED[code]})" in captured.out
    assert f"{code} is no longer a rule: {DROPPED[code]}" in captured.err
