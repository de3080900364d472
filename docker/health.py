"""Asks a service on loopback whether it can serve; exit code 0 when it can. usage: health.py PORT

For HEALTHCHECK: run with `python3 -I -S`, which imports nothing else and takes a few milliseconds.
"""

import socket
import sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2) as line:
    line.settimeout(2)
    line.sendall(b"GET /health/ready HTTP/1.0\r\nHost: localhost\r\n\r\n")
    status = line.recv(64).split(b" ")
sys.exit(0 if len(status) > 1 and status[1] == b"200" else 1)
