"""mount, umount, mkfs, blkid and udevadm of a simulated host; the keeper of the host does the mounting.

A disk of the simulation always carries a file system already: a program that would make a new one is refused.
"""

import os
import sys

from keeper import ask

TYPE = "ext4"
MOUNT_FAILED = 32


def mounted() -> "dict[str, str]":
    """Mount point to device."""
    found = {}
    with open("/proc/self/mountinfo") as table:
        for line in table:
            left, _, right = line.partition(" - ")
            found[left.split()[4]] = right.split()[1]
    return found


def fstab() -> "list[list[str]]":
    """The lines of /etc/fstab that name a device and a place."""
    try:
        with open("/etc/fstab") as table:
            lines = [line.split() for line in table if not line.lstrip().startswith("#")]
    except OSError:
        return []
    return [line for line in lines if len(line) > 1 and line[1].startswith("/")]


def attach(device: str, target: str) -> str:
    """Mount a device; returns what went wrong."""
    node = os.path.realpath(device)
    if not os.path.exists(node):
        return f"mount: {target}: special device {device} does not exist."
    if not os.path.isdir(target):
        return f"mount: {target}: mount point does not exist."
    if mounted().get(target) == node:
        return f"mount: {target}: {device} already mounted on {target}."
    return ask(device=node, at=target).get("error", "")


def mount(arguments: "list[str]") -> str:
    """mount -a | mount PLACE | mount [-t TYPE] [-o OPTIONS] DEVICE PLACE"""
    plain, options = parsed(arguments)
    if "-a" in options:
        problems = [
            attach(line[0], line[1])
            for line in fstab()
            if line[1] not in mounted()
            if os.path.exists(os.path.realpath(line[0])) or "nofail" not in "".join(line[3:4]).split(",")
        ]
        return "\n".join(filter(None, problems))
    if len(plain) == 1:
        entries = [line for line in fstab() if plain[0] in line[:2]]
        if not entries:
            return f"mount: {plain[0]}: can't find in /etc/fstab."
        plain = entries[0][:2]
    if len(plain) != 2:
        os.execv("/opt/usr-bin/mount", ["mount", *arguments])
    return attach(plain[0], plain[1].rstrip("/"))


def umount(arguments: "list[str]") -> str:
    """umount PLACE | umount DEVICE"""
    plain, _ = parsed(arguments)
    places = [
        at for at, device in mounted().items() if at == plain[0].rstrip("/") or device == os.path.realpath(plain[0])
    ]
    places = [at for at in places if not at.startswith("/opt/guest/")]
    if not places:
        return f"umount: {plain[0]}: not mounted."
    return ask(device=mounted()[places[-1]], at=places[-1], take="away").get("error", "")


def parsed(arguments: "list[str]") -> "tuple[list[str], list[str]]":
    """Words and options; the values of -t, -o, -s, -L and -U are dropped."""
    plain, options, rest = [], [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-t", "-o", "-s", "-L", "-U"):
            options.append(f"{word} {rest.pop(0) if rest else ''}")
        elif word.startswith("-"):
            options.append(word)
        else:
            plain.append(word)
    return plain, options


def blkid(arguments: "list[str]") -> int:
    """blkid DEVICE | blkid -o value -s TYPE DEVICE"""
    plain, options = parsed(arguments)
    there = [device for device in plain if os.path.exists(os.path.realpath(device))]
    for device in there:
        print(TYPE if "-o value" in options else f'{device}: TYPE="{TYPE}" (simulated)')
    return 0 if there else 2


def main(name: str, arguments: "list[str]") -> int:
    """Run one of the programs."""
    if name in ("mount", "umount"):
        problem = (mount if name == "mount" else umount)(arguments)
        if problem:
            print(problem, file=sys.stderr)
        return MOUNT_FAILED if problem else 0
    if name == "blkid":
        return blkid(arguments)
    if name.startswith("mkfs"):
        print(f"{name}: the device contains a {TYPE} file system already (simulated); nothing done", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
