"""L0: the comments that silence the doctor."""

from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.rule import RULES, Example, rule
from serve.doctor.suppress import Suppressions

# Whether these find something depends on what has been built in this checkout, not on the text.
OF_THE_CHECKOUT = {"L004", "L008"}


@rule(
    "L015",
    Severity.INFO,
    bad=Example("# doctor: ignore=L003\nmax_batch_size: 8"),
    good=Example("# doctor: ignore=L004 the version folder is mounted when the container starts\nmax_batch_size: 8"),
)
def suppressions_have_a_reason(suppressions: Suppressions) -> Iterator[Found]:
    """A comment silences a rule and does not say why.

    The next reader cannot tell a decision from an accident.

    Source: this project's own experience.
    Fix: add the reason behind the code: `# doctor: ignore=B201 every request is one execution, to compare with`.
    """
    for comment in suppressions.comments:
        if not comment.reason:
            yield Found(comment.at, f"why is {', '.join(comment.codes)} ignored? Write the reason behind the code.")


@rule(
    "L016",
    Severity.INFO,
    bad=Example("# doctor: ignore=B999 of a rule that does not exist\nmax_batch_size: 8"),
    good=Example("# doctor: ignore=L004 the version folder is mounted when the container starts\nmax_batch_size: 8"),
)
def suppressions_are_used(suppressions: Suppressions) -> Iterator[Found]:
    """A comment silences a rule that finds nothing there, or that does not exist.

    It would hide the finding on the day that it becomes true.

    Source: this project's own experience.
    Fix: remove the code from the comment. L004 and L008 are never unused: they depend on what is built here.
    """
    for comment in suppressions.comments:
        for code in comment.codes:
            known = code in RULES
            if not known or (code in suppressions.selected and code not in comment.used | OF_THE_CHECKOUT):
                what = "finds nothing here" if known else "is no rule"
                yield Found(comment.at, f"{code} {what}, so the comment ignores nothing. Remove the code.")
