"""Runs in check.sh's pods: tries every target at once and prints one line for each.

usage: python3 probe.py NAME=KIND:HOST:PORT...

A line is "NAME answered", "NAME timeout" or "NAME error: ...". An answer, not just a connection, has to come from
what is really there: something beyond the node might accept any connection.
"""

import concurrent.futures
import http.client
import os
import socket
import ssl
import sys

SECONDS = int(os.environ.get("PROBE_SECONDS", "3"))
"""Of a probe. What answers on a busy machine may take longer than what is cut off is waited for."""
KUBERNETES_DEFAULT = b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00"


def https(host: str, port: int, path: str) -> tuple[int, bytes]:
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def pod(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    connection.request("GET", "/")
    return "SimpleHTTP" in (connection.getresponse().getheader("Server") or "")


def api(host: str, port: int) -> bool:
    return b"gitVersion" in https(host, port, "/version")[1]


def kubelet(host: str, port: int) -> bool:
    return https(host, port, "/pods")[0] == 401


def dns(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        flags_and_counts = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
        sock.sendto(b"ab" + flags_and_counts + KUBERNETES_DEFAULT + b"\x00\x01\x00\x01", (host, port))
        reply = sock.recv(512)
        return reply[:2] == b"ab" and reply[3] & 15 == 0 and reply[6:8] != b"\x00\x00"


PROBES = {"pod": pod, "api": api, "kubelet": kubelet, "dns": dns}


def verdict(argument: str) -> str:
    name, _, target = argument.partition("=")
    kind, host, port = target.split(":")
    try:
        return f"{name} answered" if PROBES[kind](host, int(port)) else f"{name} error: something else answered"
    except TimeoutError:
        return f"{name} timeout"
    except OSError as error:
        return f"{name} error: {error}"


with concurrent.futures.ThreadPoolExecutor(max_workers=len(sys.argv)) as pool:
    for line in pool.map(verdict, sys.argv[1:]):
        print(line)
