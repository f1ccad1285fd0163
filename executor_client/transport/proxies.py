"""Which hosts are reached without the proxy of the environment.

aiohttp takes HTTPS_PROXY and NO_PROXY from the environment as Python's urllib reads them: names and domains only.
kubectl takes networks, too, such as `10.0.0.0/8`, and clusters are often named by address.
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def bypasses_proxy(url: str, environment: Mapping[str, str]) -> bool:
    """True if a network in NO_PROXY holds the host of this URL, which then has to be an address."""
    try:
        address = ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    for entry in environment.get("no_proxy", environment.get("NO_PROXY", "")).split(","):
        try:
            network = ip_network(entry.strip(), strict=False)
        except ValueError:  # a name, a domain or *, which urllib knows
            continue
        if address in network:
            return True
    return False
