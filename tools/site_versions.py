"""Lists the versions of the site that stand in one folder, for the selector in its header.

`make site-version` builds the pages of this version into `site/VERSION` and runs
`python tools/site_versions.py site`. Publish the folder `site` as a whole and keep what older
versions left in it: their pages stay as they were, and each offers all the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MOVED = """<!doctype html>
<meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">streamveil {0}</a>
"""


def newest_first(site: Path) -> list[str]:
    """The versions whose pages are there."""
    found = [path.parent.name for path in site.glob("*.*.*/index.html")]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def main(site: Path) -> None:
    """Writes `versions.json`, and a first page that leads to the newest version."""
    names = newest_first(site)
    told = [{"version": name, "title": name, "aliases": []} for name in names]
    (site / "versions.json").write_text(json.dumps(told, indent=1) + "\n")
    (site / "index.html").write_text(MOVED.format(names[0]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
