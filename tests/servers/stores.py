"""The servers of files that the suite of sources is run on."""

from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server
from tests.servers.web import WebServer

STORES = {"s3": S3Server, "gcs": GcsServer, "azure": AzureServer, "http": WebServer}
