"""How a program on a host asks the keeper of the host for what only a kernel could do."""

import json
import os
import socket
from typing import Any


def ask(**request: "Any") -> "dict[str, str]":
    """Send one request and return the answer; empty when all is well or the machine ends."""
    folder = os.open("/opt/guest/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(f"/proc/self/fd/{folder}/keeper")
            line.sendall(json.dumps(request).encode() + b"\n")
            answer = line.makefile("rb").readline()
    finally:
        os.close(folder)
    return dict(json.loads(answer)) if answer else {}
