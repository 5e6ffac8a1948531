"""The first login of a run: reach the host, let it prove the pinned key, and ask the agent once.

fabric opens the connection, on a socket of our own with TCP_NODELAY (an exec takes 4 ms instead of 48). fabric accepts
unknown host keys by default and reads the user's configuration: both are taken away before it connects.
"""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any

import fabric
import paramiko

from gpuops import argv, names
from gpuops.errors import HostError, HostKeyMismatch, Unreachable
from gpuops.remote import (
    AGENT_COMMAND,
    MAX_ANSWER_BYTES,
    NO_PYTHON,
    Finished,
    end_group,
    judge,
    new_token,
    read_answer,
    script,
)

MAX_STEP_S = 30.0
EXIT_STATUS_S = 2.0
"""How long the exit status may come after the last output."""
UNKNOWN = -1
SILENT = "the login works, but its shell did not answer in time: a start file such as .bashrc may hang"


def connect(login: argv.Login, seconds: float) -> Any:
    """An open fabric connection to the pinned host.

    Raises `HostKeyMismatch` before anything is sent when another key is presented, `Unreachable` for all that may pass.
    """
    argv.check_endpoint(login.endpoint)
    step = max(1.0, min(seconds, MAX_STEP_S))
    endpoint = login.endpoint
    config = fabric.Config(overrides={"load_ssh_configs": False, "forward_agent": False}, lazy=True)
    sock, carrier = _way(login, step)
    connection = fabric.Connection(
        endpoint.host, user=endpoint.user, port=endpoint.port, config=config, forward_agent=False, connect_timeout=step,
        connect_kwargs={
            "sock": sock, "key_filename": login.identity, "allow_agent": False, "look_for_keys": False,
            "banner_timeout": step, "auth_timeout": step, "channel_timeout": step,
        },
    )  # fmt: skip
    client: paramiko.SSHClient = connection.client
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.load_host_keys(login.known_hosts)
    try:
        connection.open()
    except paramiko.BadHostKeyException as error:
        _close(sock, carrier)
        raise HostKeyMismatch(
            f"{endpoint.host} port {endpoint.port} presented another host key than the pinned one"
        ) from error
    except paramiko.AuthenticationException as error:
        _close(sock, carrier)
        raise Unreachable(f"{endpoint.host} port {endpoint.port} does not accept the run's key yet") from error
    except paramiko.SSHException as error:
        _judge_jump(_close(sock, carrier))
        text = names.escape(str(error))
        if "not found in known_hosts" in text or "no acceptable host key" in text:
            raise HostKeyMismatch(
                f"{endpoint.host} port {endpoint.port} presented a key of another kind: {text}"
            ) from error
        raise Unreachable(f"{endpoint.host} port {endpoint.port}: {text}") from error
    except (OSError, EOFError) as error:
        _judge_jump(_close(sock, carrier))
        raise Unreachable(f"{endpoint.host} port {endpoint.port}: {names.escape(str(error))}") from error
    return connection


def presented(login: argv.Login, seconds: float) -> str:
    """The ed25519 key that a host presents over its jump host, without any proof. Raises `Unreachable`."""
    step = max(1.0, min(seconds, MAX_STEP_S))
    sock, carrier = _way(login, step)
    transport = paramiko.Transport(sock)
    try:
        transport.banner_timeout = step
        transport.get_security_options().key_types = ("ssh-ed25519",)
        transport.start_client(timeout=step)
        key = transport.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"
    except (paramiko.SSHException, OSError, EOFError) as error:
        _judge_jump(_close(sock, carrier))
        raise Unreachable(f"{login.endpoint.host} port {login.endpoint.port}: {names.escape(str(error))}") from error
    finally:
        transport.close()
        _close(sock, carrier)


def _way(login: argv.Login, step: float) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
    """An open way to the host: a socket with TCP_NODELAY, or one whose other end a child carries over the jump host."""
    endpoint = login.endpoint
    if login.jump is not None:
        ours, theirs = socket.socketpair()
        with theirs:
            child = subprocess.Popen(
                argv.through(login), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE
            )
        return ours, child
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout=step)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise Unreachable(f"{endpoint.host} port {endpoint.port}: {error}") from error
    return sock, None


def _close(sock: socket.socket, carrier: subprocess.Popen[bytes] | None) -> str:
    """Close the way to the host; what the jump host said when nothing came through, empty without one."""
    sock.close()
    if carrier is None:
        return ""
    try:
        said = carrier.communicate(timeout=2)[1]
    except subprocess.TimeoutExpired:  # it works, and waits for more
        end_group(carrier)
        return ""
    return names.escape(said.decode("utf-8", "replace").strip(), "\n")


def _judge_jump(said: str) -> None:
    if said:
        judge(Finished(255, b"", f"jump host: {said}"))


def ask(login: argv.Login, operation: str, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], float]:
    """Log in, ask the agent one thing and log out. Returns the answer and the seconds that the exchange took."""
    end = time.monotonic() + seconds
    connection = connect(login, seconds)
    try:
        token = new_token()
        transport = connection.client.get_transport()
        channel = transport.open_session(timeout=max(1.0, min(MAX_STEP_S, end - time.monotonic())))
        begun = time.monotonic()
        channel.settimeout(max(0.1, end - begun))
        channel.exec_command(AGENT_COMMAND)
        _tell(channel, script(operation, request, token))
        out = _read_all(channel, end)
        channel.status_event.wait(max(0.0, min(EXIT_STATUS_S, end - time.monotonic())))
        code = channel.recv_exit_status() if channel.exit_status_ready() else UNKNOWN
        if code == 127:
            raise HostError(NO_PYTHON)
        if code != UNKNOWN and token.encode() not in out:
            raise HostError(_refusal(code, out))
        return read_answer(out, token, ""), time.monotonic() - begun
    except TimeoutError as error:
        raise Unreachable(SILENT) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unreachable(f"the connection broke: {names.escape(str(error)) or type(error).__name__}") from error
    finally:
        connection.close()


def _tell(channel: paramiko.Channel, program: bytes) -> None:
    """Send the program. A command that ended without reading it is no broken connection: its status and words come next."""
    try:
        channel.sendall(program)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        return


def _refusal(code: int, out: bytes) -> str:
    """A login that ended the command by itself and ran nothing of it: a proxy for shells, or a forced command."""
    said = " ".join(names.escape(out.decode("utf-8", "replace"), "\n").split())[:200]
    told = f", it says: {said}" if said else ""
    return (
        f"the login works, but this address runs no commands (exit code {code}{told}): it cannot carry transfers. "
        "Use an address that leads to the machine's own SSH daemon"
    )


def _read_all(channel: paramiko.Channel, end: float) -> bytes:
    """stdout until its end; stderr is dropped, so that it cannot fill the window."""
    channel.set_combine_stderr(False)
    pieces: list[bytes] = []
    size = 0
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise Unreachable(SILENT)
        channel.settimeout(left)
        if channel.recv_stderr_ready():
            channel.recv_stderr(1 << 16)
        data = channel.recv(1 << 16)
        if not data:
            return b"".join(pieces)
        pieces.append(data)
        size += len(data)
        if size > MAX_ANSWER_BYTES:
            raise HostError("the host's answer is too long")
