"""Text for people, from the same values that `--json` prints. Pure: functions from values to lines.

Text that came from a host or a provider is escaped here, whatever was done before.
"""

from __future__ import annotations

import datetime
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from gpuops.inventory import Line
from gpuops.plan import Plan
from gpuops.policy import Policy
from gpuops.report import rfc3339
from gpuops.spec import Spec
from gpuops.state import GUARD_LAYER, RunState
from gpuops.units import duration_text
from gpuops.values import Money, SendList, Time

_LIST_SHOWN = 40


def safe(text: object) -> str:
    """Text without control characters: an ESC in a file name must not reach the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in str(text))


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> list[str]:
    """Columns, aligned to the left."""
    lines = [[safe(c) for c in row] for row in ([head] if head else [])] + [[safe(c) for c in row] for row in rows]
    if not lines:
        return []
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(max(map(len, lines)))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=False)).rstrip() for line in lines]


def size_text(size: float) -> str:
    """Bytes for people, by 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def clock_text(at: Time | None) -> str:
    """A moment in this computer's time zone, and how it is called."""
    if at is None:
        return "unknown"
    return datetime.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def money_text(value: Money) -> str:
    """Money with four decimals: a minute of a small machine is a fraction of a cent."""
    return f"{value.amount:.4f} {value.currency}"


def sheet(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Labels with sentences beside them, wrapped at `width` under their own beginning."""
    shown = [(safe(label), safe(text)) for label, text in rows]
    room = max((len(label) for label, _ in shown), default=0)
    lines: list[str] = []
    for label, text in shown:
        # a path or a command is never broken: somebody will copy it
        wrapped = textwrap.wrap(text, max(width - room - 4, 30), break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"  {label if n == 0 else '':<{room}}  {piece}" for n, piece in enumerate(wrapped)]
    return lines


def plan_lines(spec: Spec, plan: Plan, now: Time, width: int = 110) -> list[str]:
    """The plan on one screen: what it costs, what it is for, when it ends and by what, what survives."""
    offer = plan.offer
    device = f"{offer.device.count} x {offer.device.name}, {offer.device.memory_gb:g} GB each"
    others = f", the cheapest of {plan.others + 1} that fit" if plan.others else ""
    steps = {1: "second", 60: "minute", 3600: "hour"}.get(offer.billing_unit_s)
    unit = f"billed by the {steps}" if steps else f"billed in steps of {duration_text(offer.billing_unit_s)}"
    rows = [
        ("costs at most", f"{money_text(plan.until_limit)} (by the deadline {money_text(plan.until_deadline)}); "
            f"your cap is {money_text(plan.cap)}"),
        ("price", f"{money_text(offer.rate)} per hour, {unit}; {offer.source}, seen {rfc3339(offer.observed_at)}"),
        ("device", device + (" (simulated: nothing is bought from anybody)" if plan.simulated else "")),
        ("offer", f"{offer.provider} {offer.product} in {offer.region}, account {offer.account}{others}"),
        *((("if sold out", further_text(plan)),) if plan.further else ()),
        ("runs", " ".join(spec.train.argv)),
        ("deadline", f"{clock_text(plan.deadline)} (in {duration_text(plan.deadline - now)}): by then the results are here and "
            "the machine is gone" + ("; sooner when training ends" if spec.teardown.when == "ended" else "")),
        ("limit", f"{clock_text(plan.limit)} (in {duration_text(plan.limit - now)}): whatever went wrong, the machine ends then, "
            "copied or not"),
        *(("ended by", f"{layer.name} ({layer.grade}){_LAYERS.get(layer.name, '')}") for layer in plan.layers),
        ("what survives", f"if this computer is off at the limit: {plan.survives}"),
        *((("machine lost", f"if the machine is lost, another one is rented, at most {plan.resume} times, within the same cap "
            "and deadline; training goes on from the newest verified copy, also without this terminal"),) if plan.resume else ()),
        ("upload", upload_text(plan)),
        ("copies go to", f"{spec.outputs.destination} (one checkpoint takes about {duration_text(max(plan.copy_s, 1))})"),
        *(("note", note) for note in plan.notes),
    ]  # fmt: skip
    return [f"Plan for {safe(spec.name)} (nothing is bought yet)", *sheet(rows, width)]


_LAYERS = {
    "provider timer": ": the provider ends it at the limit, also while this computer is off; it copies nothing",
    GUARD_LAYER: ": a process of gpuops that goes on without this terminal; it copies first, then ends the machine",
}
"""What a layer means: something that ends the machine without anybody at a keyboard."""


def further_text(plan: Plan) -> str:
    """What is bought instead when the provider has no capacity for the offer."""
    ways = [f"{o.product} in {o.region} at {money_text(o.rate)} per hour" for o in plan.further]
    return f"{', then '.join(ways)}; each only when the one before it certainly made nothing, within the same cap"


def upload_text(plan: Plan) -> str:
    """What goes over this computer's line, how long it takes and what it costs meanwhile."""
    load = plan.upload
    if load is None:
        return "cannot be listed now; the dry run will say"
    if load.cost is None:
        return f"{size_text(load.bytes)}; how long it takes is not measured yet to this provider and region"
    where = f"{plan.offer.provider}/{plan.offer.region}"
    text = f"{size_text(load.bytes)} takes about {duration_text(math.ceil(load.seconds))} at the {size_text(load.uplink)}/s "
    text += f"last measured to {where}, and costs {money_text(load.cost)}"
    if load.fetch_cost is not None:
        fetch_text = duration_text(math.ceil(load.fetch_s))
        text += f"; cheaper if the host fetches it (see `inputs`): about {fetch_text}, {money_text(load.fetch_cost)}"
    return text


def send_lines(preview: SendList) -> list[str]:
    """What a dry run would send."""
    lines = ["Transfer, dry run (nothing sent yet)", *([f"  {safe(preview.streamed)}"] if preview.streamed else [])]
    for destination, files in preview.trees:
        real = [f for f in files if f.kind != "directory"]
        lines.append(f"  to {safe(destination)}: {len(real)} files, {size_text(sum(f.size for f in real))}")
        for f in real[:_LIST_SHOWN]:
            lines.append(f"    {size_text(f.size):>10}  {safe(f.path)}" + ("  (link)" if f.kind == "link" else ""))
        if len(real) > _LIST_SHOWN:
            lines.append(f"    … and {len(real) - _LIST_SHOWN} more")
    if preview.excluded:
        named = preview.excluded[:12]
        more = max(preview.excluded_count, len(preview.excluded)) - len(named)
        lines.append(f"  left out: {', '.join(safe(x) for x in named)}" + (f" and {more} more" if more else ""))
    lines += [f"  note: {safe(note)}" for note in preview.notes]
    lines += [f"  LOOKS LIKE A KEY OR TOKEN: {safe(x)}" for x in preview.suspicious]
    lines.append(f"  total {size_text(preview.total_bytes)}, list {preview.digest}")
    return lines


def progress_line(s: RunState, now: Time, policy: Policy) -> str:
    """One line of live training, what matters most first, since narrow terminals cut its end: time left, cost, step, loss."""
    p = s.rental
    if p is None or p.work.status is None:
        return ""
    status, beat = p.work.status, p.work.status.beat
    left = s.teardown_at(policy) - now
    parts: list[str] = ["training" if status.phase == "running" else status.phase]
    parts.append(f"{duration_text(left)} left" if left > 0 else "time is up")
    parts.append(f"cost {money_text(s.spent(now))} of {money_text(s.spec.cap)}")
    if beat:
        parts.append(f"step {safe(beat.get('step', '?'))}")
        if isinstance(beat.get("loss"), (int, float)):
            parts.append(f"loss {beat['loss']:.4f}")
    if status.generations:
        mirrored = " copied" if status.generations[-1] in p.work.copied else ""
        parts.append(f"newest {safe(status.generations[-1])}{mirrored}")
    if beat and isinstance(beat.get("tps"), (int, float)):
        parts.append(f"{beat['tps']:,.0f} tokens/s")
    return "  ".join(parts)


def status_lines(runs: list[dict[str, Any]]) -> list[str]:
    """The `status` document as text."""
    rows = [
        (r["id"], r["phase"] + (f" ({r['outcome']})" if r["outcome"] else ""), _amount(r["spent"]), _amount(r["cap"]),
         r["deadline"], r["limit"], ", ".join(r["may_bill"]) or "nothing")
        for r in runs
    ]  # fmt: skip
    lines = table(rows, ("run", "phase", "spent", "cap", "deadline", "limit", "may bill"))
    for r in runs:
        lines += [f"{r['id']}: ALARM: {safe(a)}" for a in r["alarms"]]
        lines += [f"{r['id']}: {safe(t)}" for t in r["trouble"]]
        if any(t.startswith("copy") for t in r["trouble"]):
            lines.append(f'  next: mend it, or give the copy up: gpuops down {r["id"]} --force-unverified "why"')
    return lines + [f"  next: {r['next']}   (or end it: gpuops down {r['id']})" for r in runs if r["next"]]


def reconcile_lines(lines: Sequence[Line], gaps: Sequence[str]) -> list[str]:
    """The reconcile table."""
    rows = [
        (
            i.item.ref.provider,
            i.item.ref.kind,
            i.item.ref.id,
            "yours, not here" if i.yours else i.cls,
            i.run or "-",
            money_text(i.item.rate) + "/h",
            i.why,
        )
        for i in lines
    ]
    head = ("provider", "kind", "id", "class", "run", "rate", "why")
    shown = table(rows, head) if rows else ["Nothing is listed."]
    return shown + [f"NOT PROVED: {safe(g)}" for g in gaps]


def report_lines(doc: dict[str, Any]) -> list[str]:
    """The report of a run as text."""
    lines = [f"Run {doc['id']}: {doc['phase']}" + (f", training {doc['outcome']}" if doc["outcome"] else "")]
    lines.append(f"  spent {_amount(doc['spent'])} of {_amount(doc['cap'])} ({doc['cost']['label']})")
    lines.append(f"  deadline {doc['deadline']}, limit {doc['limit']}")
    lines += [f"  may bill: {safe(x)}" for x in doc["may_bill"]]
    if doc["training"]["lost"]:
        lines.append(f"  lost: {safe(doc['training']['lost'])}")
    if doc["training"]["forced"]:
        lines.append(f"  forced: {safe(doc['training']['forced'])}")
    rows = [(p["id"], p["ref"] or "-", p["life"], _amount(p["spent"]), _amount(p["billed"])) for p in doc["purchases"]]
    lines += ["Purchases", *("  " + x for x in table(rows, ("id", "what", "state", "accrued", "billed")))]
    layer_rows = [(x["name"], x["grade"], x["at"]) for x in doc["layers"]]
    lines += ["Layers", *("  " + x for x in table(layer_rows, ("layer", "grade", "ends it at")))] if layer_rows else []
    copies = [(c["generation"], size_text(c["bytes"]), c["path"]) for c in doc["training"]["copies"]]
    lines += ["Copies", *("  " + x for x in table(copies))] if copies else []
    times = [(t["stage"], f"{t['seconds']:.1f} s") for t in doc["timings"]]
    lines += ["Time", *("  " + x for x in table(times))] if times else []
    audit = [
        (
            a["seq"],
            a["at"],
            "decision" if a["decision"] else "",
            a["kind"],
            a["purchase"] or "",
            json.dumps(a["data"])[:90],
        )
        for a in doc["audit"]
    ]
    return [*lines, "Audit trail", *("  " + x for x in table(audit))]


def _amount(money: dict[str, str] | None) -> str:
    return f"{money['amount']} {money['currency']}" if money else "not told"
