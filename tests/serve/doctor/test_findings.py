"""Findings of a model with variants, and codes of rules that are gone."""

import json
from pathlib import Path

import pytest
from doctor_examples import completed, write

from serve.doctor.__main__ import main
from serve.doctor.rule import Example
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
    text = "instance_group [ { count: 2 kind: KIND_CPU }, { count: 3 kind: KIND_CPU } ]"
    write(Example(text, files={"configs/other.pbtxt": completed(text)}), tmp_path)
    messages = [str(finding["message"]) for finding in findings(capsys, tmp_path, "--select", "I411")]
    assert [message[0] for message in messages] == ["2", "3"]
    assert all(message.endswith("(config.pbtxt and 1 variant: other)") for message in messages)


def test_all_variants_are_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = {f"configs/{number}.pbtxt": completed('name: "other"') for number in range(12)}
    write(Example('name: "other"', files=configs), tmp_path)
    assert len(findings(capsys, tmp_path, "--select", "L003")) == 1
    assert findings(capsys, tmp_path, "--select", "L003", "--fix") == []


@pytest.mark.parametrize("code", ["R301", "I409", "G112"])
def test_the_code_of_a_rule_that_is_gone_is_named(code: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--select", "--ignore", "--explain"):
        assert main([*([str(model)] if option != "--explain" else []), option, code]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f'"{code}" is not the code of a rule')
    path = model / "config.pbtxt"
    path.write_text(f"# doctor: ignore={code} an old comment\n{path.read_text()}")
    (finding,) = findings(capsys, model, "--select", "L016")
    assert finding["message"] == f"{code} is not a rule, so the comment ignores nothing. Remove the code."
