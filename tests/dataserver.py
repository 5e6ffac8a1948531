"""An https server with its own certificate that serves made-up files by ranges, and misbehaves as often as it is told."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import random
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BLOCK = random.Random(7).randbytes(1 << 20)


@dataclass(frozen=True)
class Made:
    """A file of made-up bytes: the same block over and over, begun at a place of its own."""

    size: int
    seed: int

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` up to `end`."""
        view = memoryview(BLOCK)
        while begin < end:
            at = (begin + self.seed * 4099) % len(BLOCK)
            piece = view[at : at + min(end - begin, len(BLOCK) - at)]
            yield piece
            begin += len(piece)

    def sha256(self) -> str:
        """Of the whole."""
        digest = hashlib.sha256()
        for piece in self.read(0, self.size):
            digest.update(piece)
        return digest.hexdigest()


@dataclass
class DataServer:
    """`files` by name; each fault is a number of times that it still happens."""

    ca: Path
    url: str = ""
    files: dict[str, Made] = field(default_factory=dict)
    breaks: int = 0
    """The connection ends in the middle of a piece."""
    wrong_bytes: int = 0
    total_lies: int = 0
    """Content-Range names another size of the whole."""
    length_lies: int = 0
    """Content-Length is that of a shorter piece."""
    refusals: int = 0
    """503."""
    ranges: bool = True
    redirect: str = ""
    pause_s: float = 0
    """Before each megabyte."""
    requests: int = 0
    broken: int = 0
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def once(self, fault: str) -> bool:
        """Whether this fault happens now; it is used up by that."""
        with self.lock:
            left = getattr(self, fault)
            setattr(self, fault, max(0, left - 1))
            return bool(left)

    def add(self, name: str, size: int, seed: int = 1) -> Made:
        """Serve a made-up file."""
        self.files[name] = Made(size, seed)
        return self.files[name]


def _handler(data: DataServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def do_GET(self) -> None:
            data.requests += 1
            self.close_connection = True
            if data.redirect:
                self.send_response(302)
                self.send_header("Location", data.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            made = data.files.get(self.path.lstrip("/"))
            if made is None or data.once("refusals"):
                self.send_error(404 if made is None else 503)
                return
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end, total = 0, made.size, made.size
            if match and data.ranges:
                begin, end = int(match[1]), int(match[2]) + 1
                if begin >= made.size:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{made.size}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                total += 1000 if data.once("total_lies") else 0
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
            else:
                self.send_response(200)
            real = end - begin > 1
            length = end - begin - (10 if real and data.once("length_lies") else 0)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self._body(made, begin, begin + length, real)

        def _body(self, made: Made, begin: int, end: int, real: bool) -> None:
            stop = (begin + end) // 2 if real and data.once("breaks") else end
            wrong = real and data.once("wrong_bytes")
            for piece in made.read(begin, stop):
                time.sleep(data.pause_s)
                if wrong:
                    piece, wrong = bytes([piece[0] ^ 1]) + bytes(piece[1:]), False
                self.wfile.write(piece)
                data.sent += len(piece)
            if stop != end:
                data.broken += 1
                with contextlib.suppress(OSError):
                    self.connection.unwrap()

    return Handler


@contextlib.contextmanager
def data_server(folder: Path) -> Iterator[DataServer]:
    """A server on 127.0.0.1, ended at the end of the block; `ca` is the file with its own certificate."""
    cert, key = certificate(folder)
    data = DataServer(cert)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None: ...

    server = Server(("127.0.0.1", 0), _handler(data))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    # the handshake belongs to the thread of the request: one slow client must not hold up the others
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    data.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield data
    finally:
        server.shutdown()
        server.server_close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "data of a test")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"
