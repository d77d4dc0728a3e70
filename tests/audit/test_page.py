"""The page for reviewers lists every fault that is planted beside those of group-bys."""

from pathlib import Path

from tests.audit import test_joins, test_ledgers, test_rounds, test_tables, test_texts

PAGE = Path(__file__).parents[2] / "docs" / "review-mechanisms.md"


def test_the_page_for_reviewers_lists_every_fault():
    page = PAGE.read_text()
    planted = (
        *test_texts.FAULTS, *test_texts.LOOK_FAULTS, *test_tables.FAULTS, *test_rounds.RUNS,
        *test_ledgers.FAULTS, *test_joins.FAULTS,
    )  # fmt: skip
    assert len(planted) > 20
    assert [name for name in planted if f"| {name} |" not in page] == []
