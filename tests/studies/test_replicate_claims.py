"""The claims that are measured again: they are read from records in git, and are those that the pages print."""

import re
from pathlib import Path

import pytest

from perf.studies.archive import ROOT, unpacked
from perf.studies.replicate.claim import FOLDER, Claim
from perf.studies.replicate.claims import CLAIMS
from perf.studies.replicate.figure import EXACT, Figure

CELL = r"[^|]*\|"
# The text around the figure of each claim on its page, as a regular expression, and the digits of the figure.
PRINTED = {
    "http over mosec": (r"\| ours, HTTP \| mosec \| {} \|", 3),
    "grpc over mosec": (r"\| ours, gRPC \| mosec \| {} \|", 3),
    "batching": ("simulated_accelerator dynamic batching: faster, {} the rows/s of the baseline at concurrency 16,", 2),
    "tuned": (rf"\| the next day \| tuned:{4 * CELL} {{}} \|", 3),
    "backend overhead": (rf"\| 600 KB \| 8 \|{4 * CELL} {{}} \|", 2),
    "served share": (r"\| resnet50 \| {} \|", 2),
    "shared memory": (r"\| map \| 1 \| grpc \| {} \|", 2),
    "ragged": (rf"\| equal \| ragged \|{CELL} {{}} \|", 2),
    "packing": (r"\| improved \| {} \|", 0),
    # The claim is the sum of both rows, which is 0 if each of them is.
    "memory estimate": (rf"\| ranker \|{2 * CELL} {{0}} \|.*\| text_recognition \|{2 * CELL} {{0}} \|", 0),
}


def test_there_are_ten_claims_and_each_is_read_from_a_record() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS) == 10
    for each in CLAIMS:
        figure = each.printed()
        assert figure.low <= figure.value <= figure.high
        assert FOLDER in each.command
        assert list(ROOT.glob(each.record)), each.record
        page = each.page.partition(",")[0]
        assert (ROOT / page).is_file()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.name))
def test_a_claim_has_the_value_and_the_interval_that_its_page_prints(claim: Claim) -> None:
    pattern, digits = PRINTED[claim.name]
    text = " ".join((ROOT / claim.page.partition(",")[0]).read_text().split())
    # In sentences an `x` is between the value and its interval.
    assert re.search(pattern.format(re.escape(in_print(claim.printed(), digits))), text.replace(" x (", " ("))


def in_print(figure: Figure, digits: int) -> str:
    """A figure with so many digits."""
    if figure.kind == EXACT:
        return f"{figure.value:g}"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f})"


def test_the_batching_claim_needs_both_configurations(tmp_path: Path) -> None:
    (batching,) = (each for each in CLAIMS if each.name == "batching")
    with pytest.raises(ValueError, match="16 clients has both configurations"):
        batching.again(tmp_path)


def test_the_value_that_is_measured_again_is_computed_as_the_printed_one() -> None:
    """The records in git, read as new records, give the printed figure."""
    results = ROOT / "perf" / "studies" / "results"
    folders = {"tuned": results / "grid", "backend overhead": results / "backend", "served share": results / "backend"}
    folders |= {"packing": results / "pack", "memory estimate": results / "memory" / "estimate"}
    folders |= {"shared memory": results / "clients"}
    for each in CLAIMS:
        if each.name in folders:
            assert each.again(folders[each.name]) == each.printed(), each.name
    (batching,) = (each for each in CLAIMS if each.name == "batching")
    with unpacked(results / "demo.jsonl") as folder:
        assert batching.again(folder) == batching.printed()


def test_the_ragged_claim_needs_both_routes(tmp_path: Path) -> None:
    (ragged,) = (each for each in CLAIMS if each.name == "ragged")
    with pytest.raises(ValueError, match="both routes"):
        ragged.again(tmp_path)
