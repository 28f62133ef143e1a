"""What changes in config.pbtxt."""

from dataclasses import replace

from studies import study

from perf.report.study.difference import difference
from tests.perf.report.study.test_verdict import evidence


def test_the_difference_shows_delay_sizes_and_instances_and_the_whole_file() -> None:
    section = difference(evidence(study()))
    assert section.sentences == ("2 of 6 values change.",)
    assert section.grids[0].rows[2] == ("max_queue_delay_microseconds", "0 µs", "1,000 µs", "changed")
    changed, whole = section.listings
    kinds = {line: kind for kind, line in changed.lines}
    assert kinds["-max_batch_size: 4"] == "removed"
    assert kinds["+  max_queue_delay_microseconds: 1000"] == "added"
    assert kinds["+++ tuned"] == kinds["@@ -1,5 +1,9 @@"] == ""
    assert whole.text == study().after_pbtxt


def test_what_changes_nothing_has_no_empty_box() -> None:
    kept = replace(study(), chosen=study().default, after_pbtxt=study().before_pbtxt)
    assert [listing.title for listing in difference(evidence(kept)).listings] == ["The whole file, to copy"]
