"""What an image does when its machine starts; runs on the host, standard library only. Simulates cloud-init's stages.

Early commands, files, accounts, host keys and mounts come before the SSH daemon; the last commands run beside it.
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import time

SETTINGS = pathlib.Path("/opt/guest/etc")
DONE = pathlib.Path("/etc/.first-boot-done")
OUTPUT = "/var/log/cloud-init-output.log"


def first() -> None:
    """Everything up to the SSH daemon, and the rest in a process of its own."""
    while not (SETTINGS / "go").exists():
        time.sleep(0.02)
    boot = json.loads((SETTINGS / "boot.json").read_text())
    for text in boot["ignored"]:
        print(f"boot: not simulated: {text}", flush=True)
    for command in boot["early"]:
        run(command)
    if not DONE.exists():
        host_keys(boot["host_keys"])
        for name, keys in boot["accounts"].items():
            login(pathlib.Path(boot["homes"][name]), keys)
        for file in boot["files"]:
            write(file)
        with open("/etc/fstab", "a") as table:
            table.writelines("\t".join(line) + "\n" for line in boot["mounts"])
        for line in boot["mounts"]:
            # cloud-init makes the mount points too
            if line[1].startswith("/"):
                os.makedirs(line[1], exist_ok=True)
    run(["mount", "-a"])
    show_keys()
    subprocess.Popen([sys.executable, __file__, "final"], start_new_session=True)


def final() -> None:
    """Commands at the end of the first boot; units that are enabled at every later one."""
    if DONE.exists():
        run(["systemctl", "start", *enabled()])
        return
    DONE.touch()
    boot = json.loads((SETTINGS / "boot.json").read_text())
    for command in boot["commands"]:
        run(command)
    print("boot: finished", flush=True)


def enabled() -> "list[str]":
    """Names of enabled units."""
    return sorted({path.name for path in pathlib.Path("/etc/systemd/system").glob("*.wants/*")})


def run(command: "list[str]") -> None:
    """Run one command, come what may; its output goes to the log and to the console."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, code = done.stdout, done.returncode
    except OSError as error:
        output, code = str(error).encode() + b"\n", 127
    with open(OUTPUT, "ab") as log:
        log.write(output)
    sys.stdout.buffer.write(output)
    if code:
        print(f"boot: {command!r} ended with {code}")
    sys.stdout.flush()


def write(file: "dict[str, object]") -> None:
    """One file, with its folders."""
    path = pathlib.Path(str(file["path"]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab" if file["append"] else "wb") as target:
            target.write(base64.b64decode(str(file["content"])))
        path.chmod(int(str(file["mode"])))
    except OSError as error:
        # the boot goes on, as cloud-init's does
        print(f"boot: failed: {error}", flush=True)


def login(home: pathlib.Path, keys: "list[str]") -> None:
    """An account's home with the keys that it accepts."""
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    (home / ".ssh").chmod(0o700)
    listed = home / ".ssh" / "authorized_keys"
    listed.write_text("".join(key.strip() + "\n" for key in keys))
    listed.chmod(0o600)


def host_keys(private: "dict[str, str]") -> None:
    """The keys that were given; without any, a new one."""
    folder = pathlib.Path("/etc/ssh")
    folder.mkdir(exist_ok=True)
    for kind, text in (private or {"ed25519": ""}).items():
        path = folder / f"ssh_host_{kind}_key"
        if not text:
            subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(path)], check=True)
            continue
        path.touch(mode=0o600)
        path.write_text(text.strip() + "\n")
        public = subprocess.run(["ssh-keygen", "-y", "-f", str(path)], stdout=subprocess.PIPE, check=True).stdout
        path.with_suffix(".pub").write_bytes(public)


def show_keys() -> None:
    """Print the host keys on the console, between the lines that cloud-init uses."""
    public = sorted(pathlib.Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    print("-----BEGIN SSH HOST KEY FINGERPRINTS-----")
    for path in public:
        done = subprocess.run(["ssh-keygen", "-l", "-f", str(path)], stdout=subprocess.PIPE)
        print(done.stdout.decode().strip())
    print("-----END SSH HOST KEY FINGERPRINTS-----")
    print("-----BEGIN SSH HOST KEY KEYS-----")
    for path in public:
        print(path.read_text().strip())
    print("-----END SSH HOST KEY KEYS-----", flush=True)


if __name__ == "__main__":
    {"first": first, "final": final}[sys.argv[1]]()
