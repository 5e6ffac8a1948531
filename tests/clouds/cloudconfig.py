"""What cloud-init would do with user-data at the first boot, as a `FirstBoot`.

Understood: cloud-config (`#cloud-config`), a script (`#!`), and several of these as MIME parts
(cloudinit.readthedocs.io, "User data formats"). Of cloud-config the modules that set up a rented host: users, ssh,
write_files, mounts, bootcmd, runcmd, hostname. Everything else is named in `FirstBoot.ignored`, so that a test can see it.
"""

from __future__ import annotations

import base64
import email
import gzip
from typing import Any

import yaml
from clouds.hosts import File, FirstBoot

QUIET = frozenset(
    "preserve_hostname manage_etc_hosts locale timezone growpart resize_rootfs package_update package_upgrade "
    "final_message output datasource ssh_deletekeys ssh_genkeytypes ssh_pwauth ssh_quiet_keygen".split()
)
"""Keys that change nothing which a simulated host could show."""
READ = frozenset(
    "users ssh_authorized_keys ssh_keys disable_root write_files mounts bootcmd runcmd hostname fqdn".split()
)
_NO_ROOT = (
    'no-port-forwarding,no-agent-forwarding,no-X11-forwarding,command="echo \'Please login as the user \\"{}\\" rather'
)
_NO_ROOT += ' than the user \\"root\\".\';echo;exit 142" '
"""What cloud-init puts before a key of root while `disable_root` holds."""


def first_boot(user_data: str, login: str, keys: tuple[str, ...] = ()) -> FirstBoot:
    """Read user-data for an image whose default user is `login`; `keys` come from the cloud's key pair.

    Raises ValueError where cloud-init would fail to read it.
    """
    config: dict[str, Any] = {}
    scripts: list[str] = []
    for text in _parts(user_data):
        if text.startswith("#cloud-config"):
            part = yaml.safe_load(text) or {}
            if not isinstance(part, dict):
                raise ValueError("cloud-config is not a mapping")
            config |= part
        elif text.startswith("#!"):
            scripts.append(text)
        elif text.strip():
            raise ValueError(f"unknown user-data: {text[:40]!r}")
    accounts = _accounts(config, login, keys)
    return FirstBoot(
        accounts=accounts,
        host_keys=_host_keys(config.get("ssh_keys") or {}),
        early=tuple(map(_command, config.get("bootcmd") or ())),
        files=tuple(map(_file, config.get("write_files") or ())) + tuple(map(_script, range(len(scripts)), scripts)),
        mounts=tuple(_mount(line) for line in config.get("mounts") or ()),
        commands=tuple(map(_command, config.get("runcmd") or ()))
        + tuple((f"/opt/first-boot-{number}",) for number in range(len(scripts))),
        ignored=tuple(sorted(set(config) - READ - QUIET)),
    )


def _parts(user_data: str) -> list[str]:
    if not user_data.startswith(("Content-Type:", "MIME-Version:")):
        return [user_data]
    message = email.message_from_string(user_data)
    payloads = [part.get_payload(decode=True) for part in message.walk() if not part.is_multipart()]
    return [payload.decode() for payload in payloads if isinstance(payload, bytes)]


def _accounts(config: dict[str, Any], login: str, keys: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Logins and their keys; the first one is who the host's processes are."""
    general = (*keys, *(config.get("ssh_authorized_keys") or ()))
    found: dict[str, tuple[str, ...]] = {}
    for user in config.get("users") or ["default"]:
        if user == "default":
            found[login] = general
        else:
            found[user["name"]] = tuple(user.get("ssh_authorized_keys") or ())
    if "root" not in found:
        lock = _NO_ROOT.format(next(iter(found))) if config.get("disable_root", True) else ""
        found["root"] = tuple(lock + key for key in general)
    return found


def _host_keys(keys: dict[str, str]) -> dict[str, str]:
    return {name.removesuffix("_private"): text for name, text in keys.items() if name.endswith("_private")}


def _command(entry: str | list[str]) -> tuple[str, ...]:
    """A string goes to the shell, a list is executed."""
    return ("/bin/sh", "-c", entry) if isinstance(entry, str) else tuple(map(str, entry))


def _file(entry: dict[str, Any]) -> File:
    content = str(entry.get("content", "")).encode()
    encoding = str(entry.get("encoding", "")).lower()
    if "b64" in encoding or "base64" in encoding:
        content = base64.b64decode(content)
    if encoding.startswith("gz"):
        content = gzip.decompress(content)
    return File(entry["path"], content, int(str(entry.get("permissions", "0644")), 8), bool(entry.get("append")))


def _script(number: int, text: str) -> File:
    return File(f"/opt/first-boot-{number}", text.encode(), 0o755)


def _mount(line: list[str]) -> tuple[str, ...]:
    """Missing fields get cloud-init's defaults (`mount_default_fields`)."""
    defaults = [None, None, "auto", "defaults,nofail,x-systemd.requires=cloud-init.service", "0", "2"]
    return tuple(str(value) for value in [*line, *defaults[len(line) :]])
