"""systemctl, systemd-run and shutdown of a simulated host: services, timers, and the end of the machine.

Of systemd only what first-boot scripts use: Type, ExecStartPre, ExecStart, Environment, WorkingDirectory, Restart and
RestartSec of services; OnBootSec, OnActiveSec, OnUnitActiveSec, OnUnitInactiveSec, OnCalendar and Unit of timers. What
else stands in a unit is ignored; what cannot be started says so and fails.
"""

import datetime
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

from keeper import ask

PLACES = ("/etc/systemd/system", "/run/systemd/system")
RUNNING = pathlib.Path("/run/units")
ALWAYS_THERE = ("ssh", "sshd", "systemd-journald", "systemd-logind")
SPAN = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1,
    "s": 1,
    "sec": 1,
    "min": 60,
    "m": 60,
    "h": 3600,
    "hr": 3600,
    "hour": 3600,
    "d": 86400,
}


def read(unit: str) -> "dict[str, list[str]] | None":
    """The keys of a unit, each with all its values; None when there is no such unit."""
    for place in PLACES:
        path = pathlib.Path(place) / unit
        if path.is_file():
            found: dict[str, list[str]] = {}
            text = path.read_text().replace("\\\n", " ")
            for line in text.splitlines():
                key, equals, value = line.partition("=")
                if equals and not line.lstrip().startswith(("#", ";")):
                    found.setdefault(key.strip(), []).append(value.strip())
            return found
    return None


def seconds(span: str) -> float:
    """`1h 30min` in seconds."""
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", span)
    return sum(float(number) * SPAN[unit.rstrip("s") if unit not in SPAN else unit] for number, unit in parts)


def moment(calendar: str, now: float) -> float:
    """The next time that an OnCalendar expression names: @EPOCH, a full date in UTC, or one of the regular words."""
    if calendar.startswith("@"):
        return float(calendar[1:])
    every = {"minutely": 60, "*:0/1": 60, "*:*": 60, "*-*-* *:*:00": 60, "hourly": 3600, "*-*-* *:*:*": 1}.get(calendar)
    if every:
        return (now // every + 1) * every
    text = calendar.removesuffix("UTC").removesuffix("Z").strip().replace("T", " ")
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


def commands(unit: "dict[str, list[str]]", key: str) -> "list[tuple[bool, list[str]]]":
    """Argument lists of a key; a leading minus means that failing is no failure."""
    found = []
    for line in unit.get(key, []):
        bare = line.lstrip("-@:+!")
        found.append(("-" in line[: len(line) - len(bare)], shlex.split(bare)))
    return found


def environment(unit: "dict[str, list[str]]") -> "dict[str, str]":
    """The variables of a service."""
    found = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    for line in unit.get("Environment", []):
        found.update(pair.split("=", 1) for pair in shlex.split(line) if "=" in pair)
    return found


def once(unit: "dict[str, list[str]]") -> int:
    """Run a service's commands and return the first failure."""
    for key in ("ExecStartPre", "ExecStart"):
        for forgiven, command in commands(unit, key):
            code = subprocess.call(
                command,
                stdin=subprocess.DEVNULL,
                env=environment(unit),
                cwd=unit.get("WorkingDirectory", ["/"])[-1].lstrip("-"),
            )
            if code and not forgiven:
                return code
    return 0


def serve(name: str) -> None:
    """Keep a service running as its Restart says."""
    while True:
        unit = read(name) or {}
        code = once(unit)
        restart = unit.get("Restart", ["no"])[-1]
        if not (restart == "always" or (restart.startswith("on-") and code and restart != "on-success")):
            return
        time.sleep(seconds(unit.get("RestartSec", ["0.1"])[-1]))


def tick(name: str) -> None:
    """Start a timer's service whenever it is due."""
    unit = read(name) or {}
    target = unit.get("Unit", [name.removesuffix(".timer") + ".service"])[-1]
    booted = time.time() - time.monotonic() + _started_at()
    begun, last = time.time(), None
    fired: set[str] = set()
    while True:
        due = []
        for key, base in (("OnBootSec", booted), ("OnStartupSec", booted), ("OnActiveSec", begun)):
            due += [(base + seconds(v), f"{key}={v}") for v in unit.get(key, []) if f"{key}={v}" not in fired]
        for value in unit.get("OnCalendar", []):
            at = moment(value, max(begun, last or 0.0))
            # a time that has passed is caught up on only where the timer says so
            missed = unit.get("Persistent", ["no"])[-1] in ("yes", "true") and not fired
            due += [(at, f"OnCalendar={value}")] if at > max(begun, last or 0.0) or missed else []
        if last is not None:
            due += [(last + seconds(v), "") for k in ("OnUnitActiveSec", "OnUnitInactiveSec") for v in unit.get(k, [])]
        if not due:
            return
        at, why = min(due)
        # short naps: the wall clock decides, and it may be set
        while time.time() < at:
            time.sleep(min(0.5, max(0.0, at - time.time())))
        fired.add(why)
        last = time.time()
        start(target, wait=True)


def start(name: str, wait: bool = True) -> int:
    """Start one unit."""
    if "." not in name:
        name += ".service"
    unit = read(name)
    if unit is None:
        if name.removesuffix(".service") in ALWAYS_THERE:
            return 0
        print(f"Failed to start {name}: Unit {name} not found.", file=sys.stderr)
        return 5
    if name.endswith(".service") and unit.get("Type", ["simple"])[-1] == "oneshot":
        return once(unit) if wait else _spawn("serve", name)
    if name.endswith((".service", ".timer")):
        return 0 if active(name) else _spawn("tick" if name.endswith(".timer") else "serve", name)
    print(f"Failed to start {name}: units of this kind are not simulated.", file=sys.stderr)
    return 1


def _spawn(how: str, name: str) -> int:
    RUNNING.mkdir(exist_ok=True, mode=0o777)
    with open(f"/var/log/{name}.log", "ab") as log:
        child = subprocess.Popen(
            [sys.executable, __file__, how, name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (RUNNING / name).write_text(str(child.pid))
    return 0


def active(name: str) -> int:
    """The process group that keeps a unit, or 0."""
    try:
        group = int((RUNNING / name).read_text())
        os.killpg(group, 0)
    except (OSError, ValueError):
        return 0
    return group


def stop(name: str) -> int:
    """End a unit and what it started in its group."""
    if "." not in name:
        name += ".service"
    if group := active(name):
        os.killpg(group, signal.SIGTERM)
    (RUNNING / name).unlink(missing_ok=True)
    return 0


def enable(name: str, wanted: bool) -> int:
    """Note whether a unit starts at every boot."""
    name += "" if "." in name else ".service"
    link = pathlib.Path(f"/etc/systemd/system/gpuops-simulated.wants/{name}")
    link.unlink(missing_ok=True)
    if wanted and read(name) is not None:
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{name}")
    return 0 if read(name) is not None else 1


def end() -> int:
    """The machine ends now."""
    ask(power="off")
    return 0


def shutdown(arguments: "list[str]") -> int:
    """shutdown [-P|-h] [+MINUTES|now|HH:MM], shutdown -c"""
    if "-c" in arguments:
        return stop("shutdown.timer")
    if "-r" in arguments:
        print("shutdown: restarting is not simulated", file=sys.stderr)
        return 1
    when = next((word for word in arguments if not word.startswith("-")), "+1")
    stop("shutdown.timer")
    if when in ("now", "+0"):
        return end()
    delay_s = int(when) * 60 if when.startswith("+") or when.isdigit() else _until(when)
    return _spawn("later", "shutdown.timer") if _note(delay_s) else 1


def _until(clock: str) -> int:
    now = datetime.datetime.now()
    hour, minute = map(int, clock.split(":"))
    return int((now.replace(hour=hour, minute=minute, second=0) - now).total_seconds()) % 86400


def _note(delay_s: int) -> bool:
    RUNNING.mkdir(exist_ok=True, mode=0o777)
    (RUNNING / "shutdown.at").write_text(str(time.time() + delay_s))
    return True


def later() -> None:
    """Wait for the noted time and end the machine."""
    at = float((RUNNING / "shutdown.at").read_text())
    while time.time() < at:
        time.sleep(min(0.5, max(0.0, at - time.time())))
    end()


def run(arguments: "list[str]") -> int:
    """systemd-run [--unit=NAME] [--on-active=SPAN | --on-calendar=TIME] COMMAND"""
    options = dict(word.lstrip("-").partition("=")[::2] for word in arguments if word.startswith("--"))
    command = [word for word in arguments if not word.startswith("-")]
    name = options.get("unit", f"run-{os.getpid()}").removesuffix(".service").removesuffix(".timer")
    place = pathlib.Path("/run/systemd/system")
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.service").write_text(f"[Service]\nExecStart={shlex.join(command)}\n")
    timed = {"on-active": "OnActiveSec", "on-calendar": "OnCalendar", "on-boot": "OnBootSec"}
    lines = [f"{timed[key]}={value}\n" for key, value in options.items() if key in timed]
    if not lines:
        return start(f"{name}.service", wait=False)
    (place / f"{name}.timer").write_text("[Timer]\n" + "".join(lines))
    return start(f"{name}.timer")


def systemctl(arguments: "list[str]") -> int:
    """systemctl VERB [UNIT...]"""
    words = [word for word in arguments if not word.startswith("-")]
    verb, units = (words[0], words[1:]) if words else ("list-units", [])
    if verb in ("poweroff", "halt"):
        return end()
    if verb in ("daemon-reload", "reset-failed", "list-units", "status", "show", "list-timers"):
        return 0
    codes = []
    for name in units:
        if verb in ("enable", "disable"):
            codes.append(enable(name, verb == "enable"))
        if verb in ("stop", "restart") or (verb == "disable" and "--now" in arguments):
            codes.append(stop(name))
        if verb in ("start", "restart") or (verb == "enable" and "--now" in arguments):
            codes.append(start(name, wait="--no-block" not in arguments))
        if verb == "is-active":
            there = bool(active(name if "." in name else f"{name}.service"))
            print("active" if there else "inactive")
            codes.append(0 if there else 3)
        if verb == "is-enabled":
            codes.append(0 if list(pathlib.Path("/etc/systemd/system").glob(f"*.wants/{name}")) else 1)
    if not codes and units:
        print(f"systemctl {verb} is not simulated", file=sys.stderr)
        return 1
    return max(codes, default=0)


def _started_at() -> float:
    """When this host's first process began, on the clock that `time.monotonic` shows."""
    with open("/proc/1/stat") as source:
        return float(source.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def main(name: str, arguments: "list[str]") -> int:
    """Run one of the programs."""
    if name in ("serve", "tick"):
        {"serve": serve, "tick": tick}[name](arguments[0])
        return 0
    if name == "later":
        later()
        return 0
    if name in ("poweroff", "halt"):
        return end()
    programs = {"systemctl": systemctl, "shutdown": shutdown, "systemd-run": run, "journalctl": lambda _: 0}
    if name not in programs:
        print(f"{name} is not simulated", file=sys.stderr)
        return 1
    return programs[name](arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
