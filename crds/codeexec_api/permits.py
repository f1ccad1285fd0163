"""Permits and mounts: how they are written, which of them a policy covers, and which addresses nobody can permit.

Pure, by the standard library's `ipaddress`. The policy, the operator and the client call it.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from codeexec_api.invalid import place_of, words_of
from codeexec_api.v1alpha1.access import EgressRule, Mount, MountSource, Permit
from codeexec_api.v1alpha1.bounds import MAX_LEFT_OUT
from codeexec_api.v1alpha1.execution_status import OpenedEgress

Network = IPv4Network | IPv6Network
Reserved = tuple[Network, str]
"""Addresses that nobody can permit, and what they are."""

_MAPPED: Final = ipaddress.ip_network("::ffff:0:0/96")
"""What a socket sends there is IPv4, and judged as that; a NetworkPolicy takes no such range."""
NEVER: Final[tuple[Reserved, ...]] = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "addresses of the pod itself"),
        ("127.0.0.0/8", "loopback addresses"),
        ("169.254.0.0/16", "link-local addresses and cloud metadata"),
        ("100.100.100.200/32", "addresses of cloud metadata"),
        ("168.63.129.16/32", "addresses of cloud metadata"),
        ("192.0.0.0/24", "addresses for protocols and cloud metadata"),
        ("224.0.0.0/3", "multicast and reserved addresses"),
        ("::/128", "addresses of the pod itself"),
        ("::1/128", "loopback addresses"),
        (_MAPPED, "IPv4 addresses written as IPv6"),
        ("64:ff9b::/96", "addresses that are translated to IPv4"),
        ("64:ff9b:1::/48", "addresses that are translated to IPv4"),
        ("2002::/16", "addresses that are translated to IPv4"),
        ("fd00:42::42/128", "addresses of cloud metadata"),
        ("fd00:100::100:200/128", "addresses of cloud metadata"),
        ("fd00:a9fe:a9fe::/48", "addresses of cloud metadata"),
        ("fd00:c1::a9fe:a9fe/128", "addresses of cloud metadata"),
        ("fd00:ec2::/32", "addresses of cloud metadata"),
        ("fd20:ce::254/128", "addresses of cloud metadata"),
        ("fe80::/10", "link-local addresses"),
        ("ff00::/8", "multicast addresses"),
    )
)
"""What no policy and no approval opens, in any cluster. What a cluster adds, the operator sees: see `open_up`."""

_LABEL_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_PERMIT: Final = re.compile(
    r"(?:\[(?P<six>[^\]]*)\]|(?P<peer>[^\[\]]*)):(?P<port>[0-9]{1,5})(?:/(?P<protocol>[A-Za-z]+))?"
)
_SELECTOR: Final = re.compile(r"(?:namespaces\{(?P<namespaces>[^{}]*)\}(?:,(?=pods)|$))?(?:pods\{(?P<pods>[^{}]*)\})?")
_MOUNT: Final = re.compile(r"(?P<kind>pvc|configmap):(?P<source>[^:]*):(?P<path>[^:]*)")
_HOW_A_PERMIT: Final = "ADDRESS/PREFIX:PORT[/UDP], or namespaces{LABEL=VALUE,…},pods{LABEL=VALUE,…}:PORT"
_HOW_A_MOUNT: Final = "pvc:NAME:/mnt/FOLDER or configmap:NAME:/mnt/FOLDER"


def parse_permit(text: str) -> Permit:
    """From a text such as `10.1.2.3/32:443`, `[2001:db8::/64]:53/UDP` or `namespaces{name=db},pods{app=db}:5432`.

    A single address needs no prefix. The inverse of `str(permit)`.

    Raises:
        ValueError: it is none; says what one looks like.
    """
    found = _PERMIT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a permit; write {_HOW_A_PERMIT}")
    fields: dict[str, Any] = {"port": int(found["port"]), "protocol": (found["protocol"] or "TCP").upper()}
    peer = found["six"] if found["peer"] is None else found["peer"]
    selected = _SELECTOR.fullmatch(peer)
    if peer and selected:
        for field, labels in (("namespace_selector", selected["namespaces"]), ("pod_selector", selected["pods"])):
            if labels is not None:
                fields[field] = {"match_labels": dict(one.partition("=")[::2] for one in labels.split(",") if one)}
    elif found["six"] is not None or re.fullmatch(r"[0-9.]+(/[0-9]+)?", peer):
        whole = "128" if found["six"] is not None else "32"
        fields["cidr"] = peer if "/" in peer else f"{peer}/{whole}"
    else:
        fields["host"] = peer
    try:
        permit = Permit.model_validate(fields)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a permit ({_first(error)}); write {_HOW_A_PERMIT}") from error
    if fault := fault_of(permit):
        raise ValueError(f"{text!r} can't be permitted: {fault}")
    return permit


def parse_mount(text: str) -> Mount:
    """From a text such as `pvc:data:/mnt/data` or `configmap:settings:/mnt/settings`. The mount is named by its folder.

    The inverse of `str(mount)`, but for the name.

    Raises:
        ValueError: it is none; says what one looks like.
    """
    found = _MOUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a mount; write {_HOW_A_MOUNT}")
    claim = found["kind"] == "pvc"
    name = re.sub(r"[^a-z0-9]+", "-", found["path"].removeprefix("/mnt/").lower())[:32].strip("-")
    source = (
        {"persistent_volume_claim": {"claim_name": found["source"]}}
        if claim
        else {"config_map": {"name": found["source"]}}
    )
    try:
        return Mount.model_validate({"name": name, "mount_path": found["path"], **source})
    except ValueError as error:
        raise ValueError(f"{text!r} is not a mount ({_first(error)}); write {_HOW_A_MOUNT}") from error


def _first(error: ValueError) -> str:
    """What pydantic says first, without the rest."""
    errors = getattr(error, "errors", None)
    return f"{place_of(errors()[0])}: {words_of(errors()[0])}" if errors else str(error)


def fault_of(permit: Permit) -> str:
    """Why this permit can't be granted, whatever a policy says; empty if it can."""
    if permit.host is not None:
        return "a NetworkPolicy can't name hosts; ask for IP addresses (cidr)"
    if permit.cidr is None:
        selectors = (permit.pod_selector, permit.namespace_selector)
        keys = [key for one in selectors if one for key in one.match_labels]
        wrong = [key for key in keys if not _LABEL_KEY.fullmatch(key)]
        return f"{wrong[0]!r} is not a valid label key" if wrong else ""
    try:
        network = ipaddress.ip_network(permit.cidr)
    except ValueError as error:
        return f"{error}; write a network such as 10.1.0.0/16, with all bits after its prefix 0"
    return open_up(network, NEVER).refused


def covers(rule: EgressRule, permit: Permit) -> bool:
    """True if a policy with this rule gives this permit."""
    if permit.protocol != rule.protocol or not rule.port <= permit.port <= (rule.end_port or rule.port):
        return False
    if rule.cidr is None:
        same = (permit.pod_selector, permit.namespace_selector) == (rule.pod_selector, rule.namespace_selector)
        return same and permit.cidr is None and permit.host is None
    if permit.cidr is None:
        return False
    try:
        return _within(ipaddress.ip_network(permit.cidr), ipaddress.ip_network(rule.cidr))
    except ValueError:
        return False


def allows(rule: MountSource, mount: Mount) -> bool:
    """True if a policy with this rule gives this mount."""
    return rule.source == mount.source


@dataclass(frozen=True)
class Opening:
    """What is opened of a range of addresses."""

    left_out: tuple[str, ...] = ()
    """Ranges in it that stay closed."""
    refused: str = ""
    """Why nothing of it is; empty if something is."""


def open_up(network: Network, reserved: Iterable[Reserved]) -> Opening:
    """What of a permitted range can be opened: all but the reserved addresses in it."""
    inside: list[Any] = []
    for one, what in reserved:
        if _within(network, one):
            return Opening(
                refused=f"{one} has {what}, which no policy or approver can open: request another destination"
            )
        if _within(one, network):
            inside.append(one)
    left_out = tuple(map(str, ipaddress.collapse_addresses(one for one in inside if one != _MAPPED)))
    if str(network) in left_out:
        return Opening(refused="none of its addresses can be permitted")
    if len(left_out) > MAX_LEFT_OUT:
        return Opening(
            refused=f"it contains {len(left_out)} ranges that can't be permitted, and at most {MAX_LEFT_OUT} can be "
            "left out; ask for a smaller range"
        )
    return Opening(left_out)


def opening(permits: Iterable[Permit], reserved: Collection[Reserved] = ()) -> tuple[tuple[OpenedEgress, ...], str]:
    """What is opened for an execution, and why nothing is.

    Args:
        permits: what it asks for, which the policy or a human has granted.
        reserved: what nobody can permit in this cluster, besides NEVER.

    Returns:
        What is opened, in the order of the permits, and an empty text; or nothing, and which permit can't be granted.
    """
    opened: list[OpenedEgress] = []
    for index, permit in enumerate(permits):
        left_out: tuple[str, ...] = ()
        if permit.cidr is not None:
            found = open_up(ipaddress.ip_network(permit.cidr), (*NEVER, *reserved))
            if found.refused:
                return (), f"spec.egress[{index}]: no policy or approval can grant {permit}: {found.refused}"
            left_out = found.left_out
        opened.append(OpenedEgress(permit=str(permit), left_out=left_out))
    return tuple(opened), ""


def _within(inner: Network, outer: Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)
