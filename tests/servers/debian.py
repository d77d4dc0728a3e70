"""Programs from Debian's packages, unpacked and not installed: nothing of them runs by itself.

`python -m tests.servers.debian FOLDER`: nginx with nchan, for tests of events, and Prometheus,
whose promtool reads what we serve to it.
"""

import subprocess
import sys
from pathlib import Path

PACKAGES = ("nginx", "libnginx-mod-nchan", "prometheus")

if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], check=True, cwd=folder)
    for file in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(file), str(folder)], check=True)
    Path("/var/lib/nginx").mkdir(parents=True, exist_ok=True)  # nchan wants it, whatever it is told
