"""What the host must show before anything is sent to it: expected against seen, one line for each."""

from __future__ import annotations

import json
import re
from typing import Any

from gpuops.errors import HostError
from gpuops.ports import HostFacts
from gpuops.spec import Spec
from gpuops.values import Check, Time, VolumeUse

GB = 1e9
MIB = 1 << 20
SAFE_RSYNC = (3, 4, 0)
PYTHON_FROM = (3, 8)
INSTEAD = {
    "tmux": "training runs in a detached session of its own",
    "rsync": "files go as a tar stream over the same connection",
}
"""What is used instead of a tool that is missing."""
NO_MOUNTS = ("none", "plain")
MEMORY_TOLERANCE = 0.02
"""Vendors round: a device of 80 GB reports a little more or less."""


def request(spec: Spec) -> dict[str, Any]:
    """What the agent has to look at for this spec."""
    mounts = [v.mount for v in spec.volumes]
    write = [*(t.destination for t in spec.transfers), spec.train.workdir, spec.outputs.directory]
    return {"free": [spec.outputs.directory, *mounts], "mounts": mounts, "write": list(dict.fromkeys(write))}


def missing_tools(seen: dict[str, Any]) -> list[str]:
    """The tools that a host lacks and that something else can stand in for."""
    there = seen.get("tools")
    return [tool for tool in INSTEAD if not (isinstance(there, dict) and there.get(tool))]


def compare(seen: dict[str, Any], spec: Spec, now: Time, own_rsync: str = "") -> HostFacts:
    """Compare an answer of the agent (already escaped) with the spec; `now` is money time amid the exchange.

    Raises `HostError` when the answer lacks what every agent sends.
    """
    try:
        checks = [
            *_device(seen, spec),
            *_volumes(seen, spec),
            _space(seen, spec),
            *_write_access(seen),
            _clock(seen, spec, now),
            _ports(seen, spec),
        ]
        checks += [_tools(seen)]
        return HostFacts(
            str(seen["boot_id"]), float(seen["time"]), tuple(checks), {**_facts(seen, spec), **_own(own_rsync)}
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise HostError(f"the host's facts cannot be read: {type(error).__name__} {error}") from error


def _device(seen: dict[str, Any], spec: Spec) -> list[Check]:
    devices, error = seen["gpus"]["devices"], seen["gpus"]["error"]
    want = spec.checks
    shown = ", ".join(sorted({d[0] for d in devices})) or error or "none"
    checks = []
    if want.device:
        ok = bool(devices) and all(_flat(want.device) in _flat(d[0]) for d in devices)
        checks.append(Check("device", want.device, shown, ok))
        checks.append(Check("device count", str(want.count), str(len(devices)), len(devices) == want.count))
    if want.memory_gb:
        least = min((_memory_gb(d) for d in devices), default=0.0)
        ok = least >= want.memory_gb * (1 - MEMORY_TOLERANCE)
        checks.append(Check("device memory", f"at least {want.memory_gb:g} GB", f"{least:.1f} GB", ok))
    if want.driver:
        drivers = sorted({d[2] for d in devices}) or ["none"]
        ok = bool(devices) and all(_version(d) >= _version(want.driver) for d in drivers)
        checks.append(Check("driver", f"at least {want.driver}", ", ".join(drivers), ok))
    return checks


def _volumes(seen: dict[str, Any], spec: Spec) -> list[Check]:
    checks = []
    for volume in spec.volumes:
        mount, ok = _volume(seen, volume)
        checks.append(Check(f"volume {volume.id}", f"mounted at {volume.mount}", mount, ok))
        if volume.min_free_gb:
            free = seen["free"].get(volume.mount)
            text = "unknown" if free is None else f"{free / GB:.1f} GB"
            ok = free is not None and free >= volume.min_free_gb * GB
            checks.append(Check(f"free on {volume.id}", f"at least {volume.min_free_gb:g} GB", text, ok))
    return checks


def _volume(seen: dict[str, Any], volume: VolumeUse) -> tuple[str, bool]:
    """Whether this volume is at its mount: by source, device names, a marker file, or the provider's word."""
    mount = volume.mount.rstrip("/") or "/"
    told = {v.get("id"): v.get("mount") for v in seen["told"].get("volumes") or () if isinstance(v, dict)}
    marker = str(seen["markers"].get(volume.mount, ""))
    found = seen["mounts"].get(mount)
    if found is None:
        # a host without mounts of its own: a marker file, or the provider's word, and a directory are all that there is
        there = bool(seen["exists"].get(volume.mount))
        ours = _marked(marker, volume.id) if marker else told.get(volume.id) == mount
        if seen["isolation"] in NO_MOUNTS and there and ours:
            return f"directory {mount} (this host has no mounts of its own)", True
        return ("a directory, not a mount" if there else "missing"), False
    root, kind, source = found
    if _marked(marker, volume.id) or any(_names(i, volume.id) for i in (root, source, *seen["labels"].get(source, []))):
        return f"mounted ({kind})", True
    if not marker and told.get(volume.id) == mount:
        return f"mounted ({kind}), by the provider's word", True
    return f"another volume: {source} {root} ({kind})", False


def _marked(marker: str, ident: str) -> bool:
    """Whether a marker file, JSON with an `id` or plain text, carries exactly this id."""
    try:
        found = json.loads(marker)
    except ValueError:
        return marker == ident
    return ident in (found.get("id"), found.get("uuid")) if isinstance(found, dict) else str(found) == ident


def _names(identity: str, ident: str) -> bool:
    """Whether a device or path is called so; vendors put words of their own before an id, never behind it.

    A serial has no room for dashes: vol-0abc is vol0abc there (EC2 user guide, "Identify the EBS device").
    """
    forms = "|".join(dict.fromkeys(re.escape(form) for form in (ident, ident.replace("-", ""))))
    return re.search(rf"(^|[^A-Za-z0-9])({forms})($|[^A-Za-z0-9_.-])", identity) is not None


def _own(rsync: str) -> dict[str, str]:
    """This computer's rsync: versions before 3.4.0 have known holes towards a hostile host."""
    note = " (has known holes towards a hostile host: install 3.4.0 or newer)" if rsync and old_rsync(rsync) else ""
    return {"rsync here": (rsync or "not installed") + note}


def old_rsync(line: str) -> bool:
    """Whether the first line of `rsync --version` tells a version with known holes towards a hostile host."""
    return _version(line.partition("version")[2].partition("protocol")[0]) < SAFE_RSYNC


def _space(seen: dict[str, Any], spec: Spec) -> Check:
    free = seen["free"].get(spec.outputs.directory)
    text = "unknown" if free is None else f"{free / GB:.1f} GB"
    ok = free is not None and free >= spec.checks.free_gb * GB
    return Check("free space", f"at least {spec.checks.free_gb:g} GB for outputs", text, ok)


def _clock(seen: dict[str, Any], spec: Spec, now: Time) -> Check:
    skew = float(seen["time"]) - now
    return Check(
        "clock", f"within {spec.checks.clock_skew_s:g} s", f"{skew:+.1f} s", abs(skew) <= spec.checks.clock_skew_s
    )


def _ports(seen: dict[str, Any], spec: Spec) -> Check:
    expected = ", ".join(map(str, sorted(spec.checks.ports))) or "none"
    ports = seen["ports"]
    if ports is None:
        return Check("published ports", f"exactly {expected}", "the provider does not tell", True)
    found = sorted(int(p) for p in ports)
    return Check(
        "published ports",
        f"exactly {expected}",
        ", ".join(map(str, found)) or "none",
        found == sorted(spec.checks.ports),
    )


def _write_access(seen: dict[str, Any]) -> list[Check]:
    """Everybody but root meets folders that belong to somebody else; the fix is named, because sudo is not ours to use."""
    user, home, closed = str(seen["user"]), str(seen["home"]), seen["closed"]
    problems = list(dict.fromkeys(str(why) for why in closed.values() if why))
    if not problems:
        return []
    fix = f"in the manifest name folders below {home}, or use an image in which {user} may write there"
    return [Check("write access", f"the manifest's folders open to {user}", f"{'; '.join(problems)}: {fix}", False)]


def _tools(seen: dict[str, Any]) -> Check:
    missing = missing_tools(seen)
    there = ", ".join([f"python3 {seen['python']}", *(t for t in INSTEAD if t not in missing)])
    notes = [f"{tool} missing: {INSTEAD[tool]}" for tool in missing]
    if installed := seen.get("installed"):
        notes.insert(0, str(installed["said"]))
    ok = _version(str(seen["python"])) >= PYTHON_FROM
    return Check("tools", f"python3 {'.'.join(map(str, PYTHON_FROM))} or later", "; ".join([there, *notes]), ok)


def _facts(seen: dict[str, Any], spec: Spec) -> dict[str, str]:
    devices = seen["gpus"]["devices"]
    first = devices[0] if devices else ["none", "0", "none"]
    free = seen["free"].get(spec.outputs.directory)
    return {
        "device": f"{len(devices)} × {first[0]}", "memory": f"{_memory_gb(first):.1f} GB", "driver": str(first[2]),
        "isolation": str(seen["isolation"]), "host": str(seen["host"]), "user": str(seen["user"]),
        "kernel": str(seen["kernel"]), "cores": str(seen["cores"]), "python": str(seen["python"]),
        "rsync": str(seen["rsync"]), "tools": ", ".join(sorted(t for t, there in seen["tools"].items() if there)),
        "free": "unknown" if free is None else f"{free / GB:.1f} GB",
        "ports": "not told" if seen["ports"] is None else ", ".join(map(str, seen["ports"])),
    }  # fmt: skip


def _memory_gb(device: list[str]) -> float:
    match = re.search(r"[\d.]+", device[1])
    return float(match[0]) * MIB / GB if match else 0.0


def _flat(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text)[:4])
