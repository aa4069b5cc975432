"""A program with one flow, as endpoint.c. Arguments: FLOWS CONTROL HOST ADDRESS PORT {tcp|udp}."""

import select
import socket
import sys

from fabrictime_client import FlowEndpoint, pace_tcp

flows, control, host, address, port, protocol = sys.argv[1:]
kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM


def dial(source_port):
    made = socket.socket(socket.AF_INET, kind)
    try:
        made.bind(("127.0.0.1", source_port))
        made.connect((address, int(port)))
    except OSError:
        made.close()
        raise
    return made


def move(source_port):
    global sock
    fresh = dial(source_port)
    sock.close()
    sock = fresh
    flow.moved(sock)


def pace(rate_bps):
    if kind == socket.SOCK_STREAM:
        pace_tcp(sock, rate_bps)
    print("pace", flow.key, rate_bps, flush=True)
    return rate_bps


sock = dial(0)
with FlowEndpoint(flows, control, host) as endpoint:
    flow = endpoint.add(sock, job='train "7"', tenant="blue", move=move, pace=pace)
    print(flow.key, flow.source_port, flush=True)
    waiting = select.poll()
    waiting.register(0, select.POLLIN | select.POLLHUP)
    waiting.register(endpoint, select.POLLIN)
    while all(number != 0 for number, _ in waiting.poll(50)):
        endpoint.poll()
sock.close()
