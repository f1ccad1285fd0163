"""Attacks on the network, for the tests of both of its layers."""

import ctypes
import os
import socket
import struct

from conformance.attacks import FACTS, system_call


def reach_another_pod():
    """reach another pod"""
    return socket.create_connection(FACTS["pod"], FACTS["seconds"])


def reach_the_api_server():
    """reach the API server"""
    return socket.create_connection(FACTS["api"], FACTS["seconds"])


def reach_the_kubelet():
    """reach the kubelet of its node"""
    return socket.create_connection(FACTS["kubelet"], FACTS["seconds"])


def ask_dns():
    """ask DNS over UDP"""
    query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
    query += b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(FACTS["seconds"])
        one.sendto(query, FACTS["dns"])
        return len(one.recv(512)) > len(query)


def connect_to_dns():
    """reach DNS over TCP"""
    return socket.create_connection(FACTS["dns"], FACTS["seconds"])


def resolve_a_name():
    """resolve a name by the library"""
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:2"  # its own clock
    return socket.getaddrinfo("kubernetes.default.svc.cluster.local", 443)


REACHES = [
    reach_another_pod,
    reach_the_api_server,
    reach_the_kubelet,
    ask_dns,
    connect_to_dns,
    resolve_a_name,
]


def listen_on_a_port():
    """listen on a port"""
    return socket.create_server(("0.0.0.0", 8099))


def send_raw_packets():
    """open a raw socket"""
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def read_packets():
    """open a packet socket"""
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


def talk_to_the_kernel_s_network():
    """open a netlink socket"""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


def talk_to_the_virtual_machine():
    """open a vsock socket"""
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def use_io_uring():
    """set up an io_uring, which opens sockets past system calls"""
    return system_call("io_uring_setup", 8, (ctypes.c_char * 120)()) >= 0


SOCKETS = [
    listen_on_a_port,
    send_raw_packets,
    read_packets,
    talk_to_the_kernel_s_network,
    talk_to_the_virtual_machine,
    use_io_uring,
]
