"""Argument lists, compared as lists: no host is needed."""

from __future__ import annotations

import pytest

from gpuops import argv
from gpuops.errors import HostError
from gpuops.values import Endpoint

LOGIN = argv.Login(Endpoint("203.0.113.7", 2222, "root"), "/r/client", "/r/known_hosts", "ssh-ed25519", "/run/g/a.s")
OPTIONS = [
    "-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
    "-o", 'IdentityFile="/r/client"', "-o", 'UserKnownHostsFile="/r/known_hosts"',
    "-o", "GlobalKnownHostsFile=/dev/null",
    "-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no", "-o", "CheckHostIP=no", "-o", "VerifyHostKeyDNS=no",
    "-o", "HostKeyAlgorithms=ssh-ed25519", "-o", "PreferredAuthentications=publickey",
    "-o", "PasswordAuthentication=no",
    "-o", "KbdInteractiveAuthentication=no", "-o", "ForwardAgent=no", "-o", "ForwardX11=no",
    "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no", "-o", "CanonicalizeHostname=no", "-o", "Tunnel=no",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "TCPKeepAlive=yes", "-o", "LogLevel=ERROR",
]  # fmt: skip
CLIENT = ["ssh", *OPTIONS, "-o", "ControlMaster=no", "-o", "ControlPath=/run/g/a.s", "-o", "ProxyCommand=/bin/false"]
TARGET = ["-p", "2222", "-l", "root", "--", "203.0.113.7"]


def test_the_options_take_nothing_from_the_user() -> None:
    assert argv.options(LOGIN) == OPTIONS


def test_the_master_logs_in_once_and_stays_for_ten_minutes() -> None:
    assert argv.master(LOGIN, 7) == [
        "ssh", *OPTIONS, "-o", "ConnectTimeout=7", "-o", "ControlMaster=yes", "-o", "ControlPath=/run/g/a.s",
        "-o", "ControlPersist=600", "-N", "-f", *TARGET,
    ]  # fmt: skip


def test_a_client_cannot_log_in_anew() -> None:
    assert argv.execute(LOGIN, "python3 -I -") == [*CLIENT, "-T", *TARGET, "python3 -I -"]
    assert argv.control(LOGIN, "check") == [*CLIENT, "-O", "check", *TARGET]


def test_rsync_sends_a_list_and_deletes_nothing() -> None:
    command = argv.rsync_send("/src", "root@203.0.113.7:/w/", "/tmp/list", False, "ssh -x")
    assert command == [
        "rsync", "-lpt", "-s", "--no-devices", "--no-specials", "--partial-dir=.gpuops-partial", "--timeout=30",
        "--mkpath", "--from0", "--files-from=/tmp/list", "-e", "ssh -x", "/src/", "root@203.0.113.7:/w/",
    ]  # fmt: skip
    assert not any("delete" in word for word in command)


def test_the_dry_run_names_everything_with_escapes() -> None:
    assert argv.rsync_list("/src/", "/empty/", (".git",), True) == [
        "rsync", "-n", "-ii", "-rlpt", "-s", "--no-devices", "--no-specials", "--copy-unsafe-links",
        "--out-format=%i|%l|%n", "--timeout=30", "--mkpath", "--exclude=.git", "/src/", "/empty/",
    ]  # fmt: skip


def test_the_remote_shell_of_rsync_quotes_as_rsync_reads_it() -> None:
    login = argv.Login(LOGIN.endpoint, "/home/o'neil x/key", LOGIN.known_hosts, LOGIN.key_type, LOGIN.control)
    shell = argv.remote_shell(login)
    assert "'IdentityFile=\"/home/o''neil x/key\"'" in shell
    assert shell.endswith("ProxyCommand=/bin/false -p 2222")


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint("-oProxyCommand=x", 22),
        Endpoint("a b", 22),
        Endpoint("h", 0),
        Endpoint("h", 22, "-l"),
        Endpoint("$(x)", 22),
        Endpoint("h\n", 22),
    ],
)
def test_an_address_that_could_be_an_option_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(HostError):
        argv.check_endpoint(endpoint)


def test_known_hosts_names_the_port_only_where_ssh_looks_for_it() -> None:
    assert argv.known_hosts_line(Endpoint("h", 22), "ssh-ed25519 AAAA x") == "h ssh-ed25519 AAAA\n"
    assert argv.known_hosts_line(Endpoint("h", 9), "ssh-ed25519 AAAA") == "[h]:9 ssh-ed25519 AAAA\n"


def test_an_address_of_version_six_stands_in_brackets() -> None:
    assert argv.rsync_target(Endpoint("fd00::1", 22), "/w/") == "root@[fd00::1]:/w/"


def test_an_ignored_name_with_wildcards_is_excluded_as_itself() -> None:
    assert argv.rsync_literal("a[1]*?.txt") == "/a\\[1]\\*\\?.txt"
    assert argv.rsync_literal("plain/") == "/plain/"
