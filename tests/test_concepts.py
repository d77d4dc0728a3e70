"""The pictures of docs/concepts are what the script draws, and each page shows its own."""

import re
from pathlib import Path

import pytest

from tools import draw_concepts

PAGES = Path(__file__).parents[1] / "docs" / "concepts"
LONG = {"continual_release", "changing_data", "selection"}  # mechanisms are designed: seconds


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one.__name__ in LONG), id=one.__name__)
        for one in draw_concepts.PICTURES
    ],
)
def test_a_picture_is_what_the_script_draws(picture, tmp_path):
    drawn = draw_concepts.draw(picture, tmp_path)
    assert drawn.read_text() == (draw_concepts.FIGURES / drawn.name).read_text(), "make figures"


def test_each_page_begins_with_what_is_learnt_and_shows_its_picture():
    names = {one.__name__.replace("_", "-") for one in draw_concepts.PICTURES}
    assert {page.stem for page in PAGES.glob("*.md")} == names
    for name in names:
        text = (PAGES / f"{name}.md").read_text()
        assert text.splitlines()[2].startswith("You learn ")
        assert re.search(rf"^!\[.{{40,}}\]\(\.\./figures/concept-{name}\.svg\)$", text, re.M)
