"""Looks at every page of the built site, as a reader with a screen reader or a phone would.

python tools/check_pages.py site --axe node_modules/axe-core/axe.min.js [--only index.html ...]
    [--seconds 300]

Each page at three widths, at one of them in the dark. `npm install axe-core` brings the rules. Ends
with 1 if a page has a serious finding, an error on the console, or is wider than the window; with
3 if a browser stopped twice before it had seen all of its pages, or if time was over: after
`--seconds` no further browser begins, and pages come in another order each time.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VIEWS = ((400, "default"), (800, "slate"), (1600, "default"))  # width, colours
BATCH = 16  # pages that one browser looks at
LIMIT = 600.0  # seconds that it may take for them; it is tried once more
BAD = ("serious", "critical")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
HARNESS = """<!doctype html><title>pages</title><body><script>
const pages = PAGES, views = VIEWS;
const loaded = (frame, page) => new Promise(done => { frame.onload = done; frame.src = page; });
const tell = one => fetch("/found", {method: "POST", body: JSON.stringify(one)});
async function look(page, width, scheme) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  document.body.append(frame);
  await loaded(frame, page);
  const inner = frame.contentWindow, script = inner.document.createElement("script");
  const errors = [];
  inner.addEventListener("error", event => errors.push(String(event.message)));
  const ready = new Promise(done => { script.onload = done; });
  script.src = "/axe.min.js";
  inner.document.body.setAttribute("data-md-color-scheme", scheme);
  await new Promise(done => setTimeout(done, 300));  // colours fade
  inner.document.head.append(script);
  await ready;
  const told = await inner.axe.run(inner.document, {resultTypes: ["violations"]});
  await tell({page, width, errors, over: inner.document.documentElement.scrollWidth - width,
    violations: told.violations.map(one => ({id: one.id, impact: one.impact,
      nodes: one.nodes.map(node => node.target.join(" ") + " | " + node.html.slice(0, 160))}))});
  frame.remove();
}
(async () => {
  for (const page of pages) for (const [width, scheme] of views) {
    try { await look(page, width, scheme); }
    catch (error) { await tell({page, width, errors: [String(error)], over: 0, violations: []}); }
  }
  await tell(null);
})();
</script></body>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the site, the rules and the page that looks at the others."""

    def __init__(
        self, *arguments: Any, harness: str, axe: Path, got: list[Any], **named: Any
    ) -> None:
        self.harness, self.axe, self.got = harness, axe, got
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        """See `SimpleHTTPRequestHandler`."""
        made = {"/look.html": self.harness.encode(), "/axe.min.js": None}
        if self.path not in made:
            return super().do_GET()
        body = made[self.path] or self.axe.read_bytes()
        kind = "text/html" if self.path.endswith("html") else "text/javascript"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)
        return None

    def do_POST(self) -> None:
        """What the page found."""
        one = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        if one is None:  # the last page was looked at
            threading.Thread(target=self.server.shutdown).start()
        else:
            self.got.append(one)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def look_at(site: Path, axe: Path, pages: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What is found on each page in each view, and what the console said."""
    got: list[dict[str, Any]] = []
    named = {"PAGES": [f"/{page}" for page in pages], "VIEWS": VIEWS}
    harness = HARNESS
    for name, value in named.items():
        harness = harness.replace(name, json.dumps(value), 1)
    handler = partial(Handler, harness=harness, axe=axe, got=got, directory=str(site))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        (Path(profile) / "stderr").open("w+") as said,
    ):
        url = f"http://127.0.0.1:{server.server_address[1]}/look.html"
        browser = subprocess.Popen(  # noqa: S603
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu",
             f"--user-data-dir={profile}/profile", "--window-size=1700,1000",
             "--enable-logging=stderr", "--remote-debugging-port=0", url],
            stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        late = threading.Timer(LIMIT, server.shutdown)
        late.start()
        try:
            server.serve_forever()
        finally:
            late.cancel()
            browser.terminate()
            try:
                browser.wait(20)
            except subprocess.TimeoutExpired:
                browser.kill()
        said.seek(0)
        console = [line for line in said.read().splitlines() if ":CONSOLE" in line]
    return got, console


def looked_at(
    site: Path, axe: Path, pages: Sequence[str], seconds: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """The same, by one browser for some pages; one that stops on its way is started again."""
    found, console = [], []
    until = time.monotonic() + seconds
    for first in range(0, len(pages), BATCH):
        if time.monotonic() > until:
            break
        part = pages[first : first + BATCH]
        for _ in range(2):
            seen, said = look_at(site, axe, part)
            if len(seen) == len(part) * len(VIEWS):
                break
        found, console = [*found, *seen], [*console, *said]
        sys.stderr.write(f"\r{len(found)} views")
    return found, console


def faults(one: dict[str, Any]) -> list[str]:
    """What is wrong with one view of a page."""
    view = f"{one['page']} at {one['width']}"
    worst = [v for v in one["violations"] if v["impact"] in BAD]
    wide = ["wider than the window"] * (one["over"] > 0)
    told = ["\n  ".join([f"{v['impact']}: {v['id']}", *v["nodes"][:3]]) for v in worst]
    return [f"{view}\n  {fault}" for fault in [*told, *one["errors"], *wide]]


def main() -> int:
    """Prints what is wrong; how it ends is said above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--axe", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=float)
    chosen = parser.parse_args()
    pages = chosen.only or sorted(
        str(page.relative_to(chosen.site)) for page in chosen.site.rglob("*.html")
    )
    if chosen.seconds is not None:
        secrets.SystemRandom().shuffle(pages)
    found, console = looked_at(chosen.site, chosen.axe, pages, chosen.seconds or float("inf"))
    said = [line for one in found for line in faults(one)]
    bad = {line.split("\n")[0] for line in said}
    seen = f"{len(found)} views of {len(pages)} pages, {len(bad)} with faults"
    sys.stdout.write("\n".join([*said, *console, seen, ""]))
    if said or console:
        return 1
    return 0 if len(found) == len(pages) * len(VIEWS) else 3


if __name__ == "__main__":
    sys.exit(main())
