"""`gpuops check`: is the manifest right, and what does it mean?"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from gpuops.cli.context import make_app
from gpuops.cli.foresee import doubts
from gpuops.cli.options import Json, ManifestPath, command_app
from gpuops.cli.start import read_manifest
from gpuops.codec import to_json
from gpuops.registry import names as installed
from gpuops.render import clock_text, sheet, size_text
from gpuops.spec import Environment, Input, Probe, Spec, Transfer
from gpuops.units import duration_text

app = command_app()


@app.command()
def check(manifest: ManifestPath, json: Json = False) -> None:
    """Check a manifest and say what it means; buys nothing.

    Every complaint names file, line and key. Asks no provider: `gpuops plan` does.

    Example: gpuops check manifests/local-demo.yaml
    """
    context = make_app(as_json=json)
    spec = read_manifest(manifest, time.time())
    rows, warnings = list(explain(spec)), list(doubts(spec, installed()))
    if json:
        context.printer.document({"spec": to_json(spec), "means": dict(rows), "warnings": warnings})
        return
    context.printer.line(f"{manifest}: good. What it means:")
    context.printer.lines(sheet([*rows, *(("WARNING", text) for text in warnings)], context.printer.width))
    context.printer.line(f"  next: gpuops plan {manifest}   (asks the provider for prices; buys nothing)")


def explain(spec: Spec) -> Iterator[tuple[str, str]]:
    """Each part of a manifest in plain sentences, as (what it is about, what it means)."""
    yield "rents", _rents(spec)
    yield "accepts", _accepts(spec)
    yield "sends", _sends(spec)
    if spec.inputs:
        yield "data", "; ".join(_input(item) for item in spec.inputs) + ". Each is verified on the host before training"
    if spec.environment is not None:
        yield "trains in", _environment(spec.environment)
    if spec.train.probe is not None:
        yield "tries first", _probe(spec.train.probe)
    yield "runs", _runs(spec)
    yield "keeps", _keeps(spec)
    yield "ends", _ends(spec)
    if spec.train.resume:
        yield "if lost", _replaced(spec.train.resume)
    yield (
        "costs",
        f"at most {spec.cap}, everything included; when that is too little, the time is cut short, not the cap",
    )
    yield "refuses", _refuses(spec)


def _rents(spec: Spec) -> str:
    need = spec.need
    memory = f" of at least {spec.checks.memory_gb:g} GB" if spec.checks.memory_gb else ""
    where = f" in {need.region}" if need.region else ""
    which = f"the offer {need.offer}" if need.offer else "the cheapest offer that fits"
    disk = f", with {spec.disk_gb:g} GB of disk" if spec.disk_gb else ""
    volumes = "".join(f"; the volume {v.id}, which exists already, is attached at {v.mount}" for v in spec.volumes)
    return f"one machine with {need.count} x {need.device}{memory} from {spec.provider}{where}: {which}{disk}{volumes}"


def _accepts(spec: Spec) -> str:
    checks = spec.checks
    driver = f", driver {checks.driver} or later" if checks.driver else ""
    otherwise = {
        "down": "otherwise nothing is sent and it goes down at once",
        "hold": f"otherwise nothing is sent and it is held {duration_text(spec.setup_s)} for a look, which costs money",
    }[checks.on_failure]
    tools = {
        "install": "Rsync and tmux are installed where they are missing",
        "refuse": "Nothing is installed on it",
    }[spec.host_tools]
    return (
        f"the machine when it shows that device{driver}, {checks.free_gb:g} GB free for results, a clock within "
        f"{duration_text(checks.clock_skew_s)}, and no open port but {', '.join(map(str, checks.ports))}; {otherwise}. {tools}"
    )


def _sends(spec: Spec) -> str:
    if not spec.transfers:
        return "nothing"
    trees = "; ".join(
        f"{_source(t)} to {t.destination}" + (f" (without {', '.join(t.exclude)})" if t.exclude else "")
        for t in spec.transfers
    )
    ignored = "" if any(t.include_ignored for t in spec.transfers) else ", what git ignores"
    hashes = f"; inputs must match {spec.inputs_sha256}" if spec.inputs_sha256 else ""
    return f"{trees}. Never keys, .env files, .git{ignored} or caches. Each file is verified there by its hash{hashes}"


def _source(transfer: Transfer) -> str:
    git = transfer.git
    if git is None:
        return transfer.source
    changes = ", with its uncommitted changes as a patch" if git.dirty == "patch" else ""
    return f"the commit {git.revision} of {git.repository}{changes}"


def _input(item: Input) -> str:
    how = {
        "https": f"fetched by the host from {item.source}",
        "path": f"sent from {item.source}",
        "volume": f"already on the volume as {item.source}",
        "command": f"made on the host by {shlex.join(word.replace('{to}', item.to) for word in item.argv)}",
    }[item.kind]
    return f"{item.to}, {how}" + (f", sha256 {item.sha256[:12]}…" if item.sha256 else "")


def _environment(environment: Environment) -> str:
    made = [f"an environment built on the host from the lock {environment.lock}"] if environment.lock else []
    made += [f"what `{shlex.join(environment.command)}` makes"] if environment.command else []
    kept = f", kept in {environment.directory} and used again" if environment.lock else ""
    named = {"python": environment.python, "torch": environment.torch, "CUDA": environment.cuda}
    expected = [f"{name} {version}" for name, version in named.items() if version]
    expected += [f"{environment.devices} devices"] if environment.devices else []
    held = f"; it must show {', '.join(expected)}, otherwise training is not launched" if expected else ""
    return " and ".join(made or ["the image as it is"]) + kept + held


def _probe(probe: Probe) -> str:
    return (
        f"{shlex.join(probe.argv)} for {probe.updates} updates, at most {duration_text(probe.timeout_s)}: time, memory and the "
        "size of a checkpoint are measured, and what does not fit is not launched"
    )


def _runs(spec: Spec) -> str:
    train = spec.train
    wall = f", for {duration_text(train.wall_clock_s)} at most" if train.wall_clock_s else ""
    secrets = f". It gets the secrets {', '.join(spec.secrets)}, from environment or keyring" if spec.secrets else ""
    return f"{shlex.join(train.argv)} in {train.workdir}{wall}; it goes on when your terminal closes{secrets}"


def _keeps(spec: Spec) -> str:
    outputs = spec.outputs
    when = "while training runs and again at its end" if outputs.mirror else "when training has ended"
    best = f" and the one with the lowest {outputs.best}" if outputs.best else ""
    load = "; one counts when the load check has loaded it" if outputs.load_check else ""
    return (
        f"checkpoints that the program writes to {outputs.directory}: copied to {outputs.destination} {when}, verified from "
        f"disk; the newest {outputs.keep_last}{best} stay{load}. What it writes elsewhere is lost with the machine"
    )


def _ends(spec: Spec) -> str:
    at = (
        f"on {clock_text(spec.deadline_at)}"
        if spec.deadline_at
        else f"{duration_text(spec.deadline_s)} after your approval"
    )
    begins = (
        "when training ends, at the latest" if spec.teardown.when == "ended" else "only when you say `gpuops down`, or"
    )
    failed = spec.teardown.keep_failed_s
    held = f" (a failed run stays up {duration_text(failed)} for a look)" if failed else ""
    return (
        f"{begins} in time for the deadline {at}{held}: stop, copy, end the machine, prove that it is gone. "
        f"{duration_text(spec.hold_s)} later, at the limit, the machine ends whether its results are copied or not. "
        f"One on which nothing is launched goes down after {duration_text(spec.setup_s)}"
    )


def _replaced(times: int) -> str:
    return (
        f"a machine that the provider takes away is replaced up to {times} time(s), within the same money and time; training "
        "goes on from the newest copy"
    )


def _refuses(spec: Spec) -> str:
    price = spec.need.max_price_per_hour
    said = [f"offers above {price:.2f} USD per hour"] if price is not None else []
    said.append(f"to send more than {size_text(spec.max_total_bytes)}")
    if not spec.accept_first_use:
        said.append("a machine whose identity (host key) nobody vouches for")
    said.append(
        "to end the machine before the newest checkpoint is copied, unless the limit has come or you give a reason"
    )
    return "; ".join(said)
