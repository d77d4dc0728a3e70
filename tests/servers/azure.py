"""A server that speaks Azure's protocol of blobs, with signatures, on a free port of loopback.

`python -m tests.servers.azure FOLDER`: installs it into FOLDER, as npm has it. Tests use it where
STREAMVEIL_AZURE_SERVER names the program; elsewhere they are skipped and say so.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.store import StoreServer

PACKAGE = "azurite@3.37.0"
ACCOUNT = "reader"


class AzureServer(StoreServer):
    """A server with one container, `bucket`."""

    program = "STREAMVEIL_AZURE_SERVER"
    keys: ClassVar = {"AZURE_STORAGE_ACCOUNT": ACCOUNT,
            "AZURE_STORAGE_KEY": base64.b64encode(b"hidden-word").decode()}  # fmt: skip
    wrong_keys: ClassVar = {"AZURE_STORAGE_KEY": base64.b64encode(b"wrong-word").decode()}

    def address(self, name: str) -> str:
        """Of a blob or a folder."""
        return (f"az://bucket/{name}?blob_storage_authority=127.0.0.1:{self.port}"
                f"&blob_storage_scheme=http&dfs_storage_authority=127.0.0.1:{self.port}"
                "&dfs_storage_scheme=http")  # fmt: skip

    @property
    def files(self) -> Any:
        """The store as whoever owns it sees it."""
        from pyarrow import fs

        own = f"127.0.0.1:{self.port}"
        return fs.AzureFileSystem(
            ACCOUNT, account_key=self.keys["AZURE_STORAGE_KEY"], blob_storage_authority=own,
            blob_storage_scheme="http", dfs_storage_authority=own, dfs_storage_scheme="http",
        )  # fmt: skip

    def command(self) -> list[str]:
        """See `StoreServer`."""
        return ["--silent", "--skipApiVersionCheck", "--disableTelemetry",
                "--disableProductStyleUrl", "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                "--location", str(self.home)]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """See `StoreServer`."""
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.keys['AZURE_STORAGE_KEY']}"}

    def stop(self) -> None:
        """Ends it in order: killed, it loses what it was given in its last seconds."""
        self.process.terminate()
        self.process.wait(30)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "azure"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix",
                    str(folder), PACKAGE], check=True)  # fmt: skip
