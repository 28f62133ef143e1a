"""L0: comments that silence the doctor."""

from collections.abc import Iterator

from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import RULES, rule
from serve.doctor.suppress import Suppressions

# Whether these find something depends on the files that were built in this checkout, not on the text.
OF_THE_CHECKOUT = {"L004", "L008"}


@rule(
    "L015",
    Severity.INFO,
    bad="# doctor: ignore=L003\nmax_batch_size: 8",
    good="# doctor: ignore=L004 the version folder is mounted when the container starts\nmax_batch_size: 8",
)
def suppressions_have_a_reason(suppressions: Suppressions) -> Iterator[Problem]:
    """A comment silences a rule and does not say why.

    The next reader cannot tell whether the comment is a decision or an accident.

    Source: this project's own experience.
    Fix: add the reason after the code: `# doctor: ignore=B201 the baseline runs every request alone`.
    """
    for comment in suppressions.comments:
        if not comment.reason:
            codes = ", ".join(comment.codes)
            yield Problem(comment.at, f"the comment ignores {codes} without a reason. Write it after the code.")


@rule(
    "L016",
    Severity.INFO,
    bad="# doctor: ignore=B999 of a rule that does not exist\nmax_batch_size: 8",
    good="# doctor: ignore=L004 the version folder is mounted when the container starts\nmax_batch_size: 8",
)
def suppressions_are_used(suppressions: Suppressions) -> Iterator[Problem]:
    """A comment silences a rule that finds nothing there, or that does not exist.

    It would hide the finding on the day that it becomes true.

    Source: this project's own experience.
    Fix: remove the code from the comment. L004 and L008 are never reported: they depend on the files built here.
    """
    for comment in suppressions.comments:
        for code in comment.codes:
            if reason := _unused(code, comment.used, suppressions.selected):
                yield Problem(comment.at, f"{code} {reason}, so the comment ignores nothing. Remove the code.")


def _unused(code: str, used: set[str], selected: frozenset[str]) -> str:
    """Why a code in a comment silences nothing; "" if it does, or if nothing can be said."""
    if code not in RULES:
        return "is not a rule"
    return "finds nothing here" if code in selected - used - OF_THE_CHECKOUT else ""
