"""What one record of the journal means to a person: the story that `up`, `launch`, `watch` and `down` tell."""

from __future__ import annotations

from typing import Any

from gpuops.render import money_text, safe, size_text, table
from gpuops.report import name_of, rfc3339
from gpuops.state import RunState
from gpuops.values import Record


def narrate(record: Record, s: RunState) -> list[str]:
    """What one record means to a person; empty for records that only the audit trail needs."""
    teller = _TELLERS.get(record.event.kind)
    return [safe(line) for line in teller(record, s)] if teller else []


def starting(record: Record) -> str:
    """What the provider says of a rental that does not run yet, out of an `observed` record; empty when nothing."""
    seen = record.event.data["observation"]
    return safe(f"Starting: {seen['reason']}") if seen["state"] == "starting" and seen.get("reason") else ""


def _wanted(r: Record, s: RunState) -> list[str]:
    cause = r.event.data.get("cause", "")
    return [f"Going down: {cause}"] if r.event.data["what"] == "closed" and cause == s.cause else []


def _created(r: Record, s: RunState) -> list[str]:
    ref = r.event.data["created"]["ref"]
    found = " (taken on by its mark)" if s.adopted else " (found by its mark: the create answer was lost)"
    how = found if r.event.data.get("via") == "search" else ""
    name = "/".join(str(ref[part]) for part in ("provider", "region", "kind", "id"))
    return [f"Rental bought: {name}{how}. It bills until it is proved gone; limit {rfc3339(s.limit)}"]


def _checked(r: Record, s: RunState) -> list[str]:
    facts = r.event.data.get("facts", {})
    said = [f"  {k}: {v}" for k, v in facts.items() if k in ("isolation", "device", "hashing")]
    return ["Host checks", *_rows(r), *said, *_held(r, s, "Nothing was sent")]


def _environment(r: Record, s: RunState) -> list[str]:
    found = r.event.data["found"]
    how = {"image": "the image as it is", "lock": "built from the lock", "command": "made by the manifest's command"}
    made = "the same lock as before, used again" if found["reused"] else how.get(found["how"], found["how"])
    took = f" in {found['seconds']:.0f} s" if found["seconds"] >= 1 else ""
    head = f"Environment of training: {made}{took}; {len(found['packages'])} packages"
    return [head, *_rows(r), *_held(r, s, "Nothing was launched")]


def _probed(r: Record, s: RunState) -> list[str]:
    found = r.event.data["found"]
    lines = [f"  {line}" for line in r.event.data["forecast"]]
    if found["exit_code"] != 0:
        lines += [f"  | {line}" for line in found["log_tail"].splitlines()[-8:]]
    return ["Probe: a few updates before the real ones", *lines, *_rows(r), *_held(r, s, "Nothing was launched")]


def _rows(r: Record) -> list[str]:
    rows = [
        ("ok" if c["ok"] else "WRONG", c["name"], f"expected {c['expected']}", f"seen {c['seen']}")
        for c in r.event.data["checks"]
    ]
    return ["  " + line for line in table(rows)]


def _held(r: Record, s: RunState, what: str) -> list[str]:
    if s.spec.checks.on_failure != "hold" or all(c["ok"] for c in r.event.data["checks"]):
        return []
    work = s.rental.work if s.rental else None
    until = rfc3339((work.checked_at if work and work.checked_at else r.at) + s.spec.setup_s)
    return [f"Held for a look until {until}; it bills. {what}.  next: gpuops ssh {s.run}   or: gpuops down {s.run}"]


def _sealed(r: Record, s: RunState) -> list[str]:
    sealed = r.event.data["sealed"]
    how = f"exit code {sealed['exit_code']}" if sealed["exit_code"] is not None else "no exit code"
    lines = [f"Sealed: training {sealed['outcome']} ({how}{', ' + sealed['reason'] if sealed['reason'] else ''})"]
    for g in sealed["generations"]:
        size = sum(f["size"] for f in g["files"])
        lines.append(f"  {g['id']}: {len(g['files'])} files, {size_text(size)}, sha256 of each taken on the host")
    if not sealed["generations"]:
        lines.append("  no complete generation was published")
    return lines


def _proof(r: Record, s: RunState) -> list[str]:
    d = r.event.data
    if d["ok"]:
        purchase = s.purchases.get(r.event.purchase or "")
        good = len([p for p in purchase.proofs if p.ok and p.at <= r.at]) if purchase else 0
        seen = f"inspect says {d.get('state')}, a complete listing shows nothing of it that bills"
        return [f"Proof of termination, round {max(1, min(good, 2))} of 2: {seen}"]
    return [f"Not proved gone yet: {d.get('why')}"]


def _attempted(r: Record, s: RunState) -> list[str]:
    d = r.event.data
    if d.get("busy"):
        return []
    if d["rule"] == "check_host" and not d.get("final"):
        attempt = s.failures("check_host", r.event.purchase or "")
        return [] if attempt and attempt.failures > 1 else ["Waiting for SSH to answer"]
    return [f"{d['rule'].replace('_', ' ')}: {d['error']}" + ("" if d.get("final") else " (will be tried again)")]


def _tail(what: str, r: Record) -> list[str]:
    lines = r.event.data["tail"].strip().splitlines()
    return [f"{what}: {lines[-1][:160]}" if lines else what]


def _replaced(r: Record, s: RunState) -> list[str]:
    copy = r.event.data.get("copy")
    begin = f"goes on from {copy['generation']}, copied and verified" if copy else "begins anew: nothing was copied yet"
    return [f"The rental was lost and is proved gone: another one is rented, as approved; training {begin}"]


def _restored(r: Record, s: RunState) -> list[str]:
    return [f"Checkpoint sent and verified on the host: {r.event.data['generation']} -> {r.event.data['path']}"]


def _refused(r: Record, s: RunState) -> list[str]:
    purchase = s.purchases.get(r.event.purchase or "")
    on = ": the next offer of the plan is tried" if purchase is not None and purchase.passed else "."
    return [f"The provider refused: {r.event.data['reason']}. Nothing was bought{on}"]


def _unknown(r: Record, s: RunState) -> list[str]:
    error = r.event.data.get("error")
    return [f"The create call has no clear answer ({error}): searching by mark, counts as billing"]


def _ended(r: Record, s: RunState) -> list[str]:
    reason = r.event.data.get("reason")
    return [f"Training ended: {r.event.data['outcome']}" + (f" ({reason})" if reason else "")]


def _brought(r: Record, s: RunState) -> list[str]:
    lines = []
    for i in r.event.data["inputs"]:
        digest = f", sha256 {i['sha256'][:12]}…" if i["sha256"] else ""
        lines.append(
            f"Input {i['how']} and verified: {i['to']} ({size_text(i['bytes'])} in {i['seconds']:.0f} s{digest})"
        )
        lines += [f"  on the way: {note}" for note in i["notes"]]
    return lines


def _launched(r: Record, s: RunState) -> list[str]:
    return [_STARTED.get(r.event.data.get("how", ""), "Training started; it goes on when this terminal closes")]


def _reconciled(r: Record, s: RunState) -> list[str]:
    ours = {p.ref for p in s.purchases.values() if p.ref}
    rows = [
        (p.ref.kind if p.ref else "rental", p.ref.id if p.ref else p.nonce, p.life, money_text(p.spent(r.at)),
         money_text(p.billed) if p.billed else "not told")
        for p in s.purchases.values()
    ]  # fmt: skip
    listed = [i for i in r.event.data.get("items", ()) if any(str(o.id) == i["id"] for o in ours)]
    left = f"{len(listed)} still shown, free" if listed else "nothing of this run is left"
    head = ("kind", "id", "state", "accrued", "billed")
    return ["Reconcile (complete listing)", *("  " + line for line in table(rows, head)), f"  {left}"]


def _copied(r: Record, s: RunState) -> list[str]:
    c = r.event.data["copied"]
    return [
        f"Copied and verified from disk: {c['generation']} ({size_text(c['bytes'])}, list {c['digest'][:12]}) -> {c['path']}"
    ]


_STARTED = {
    "tmux": "Training started in tmux; it goes on when this terminal closes",
    "detached": "Training started in a detached session of its own; it goes on when this terminal closes",
}
_TELLERS: dict[str, Any] = {
    "wanted": _wanted,
    "created": _created,
    "refused": _refused,
    "unknown": _unknown,
    "not_sent": lambda r, s: [f"Nothing was bought: {r.event.data.get('why')}"],
    "replaced": _replaced,
    "restored": _restored,
    "unarmed": lambda r, s: [f"The guard on this computer cannot end this rental: {r.event.data['why']}"],
    "pinned": lambda r, s: [f"Host key pinned ({r.event.data['route']}): {r.event.data['fingerprint']}"],
    "checked": _checked,
    "environment": _environment,
    "probed": _probed,
    "building": lambda r, s: _tail("The host is making the environment of training", r),
    "probing": lambda r, s: _tail("The probe is running", r),
    "transferred": lambda r, s: [
        f"Transferred and verified on the host by sha256: {r.event.data['files']} files, {size_text(r.event.data['bytes'])}"
    ],
    "sent": lambda r, s: [
        f"Sent and verified by sha256: {r.event.data['files']} files, {size_text(r.event.data['bytes'])}; inputs come next"
    ],
    "brought": _brought,
    "launched": _launched,
    "ended": _ended,
    "sealed": _sealed,
    "unreachable": lambda r, s: [f"The host cannot be sealed: {r.event.data['why']}. Held until the limit {rfc3339(s.limit)}"],
    "copied": _copied,
    "forced": lambda r, s: [f"FORCED: ending without a verified copy ({r.event.data['reason']})"],
    "ending": lambda r, s: [f"Terminating {r.event.purchase}: {r.event.data['cause']}"],
    "proof": _proof,
    "gone": lambda r, s: [f"Gone, proved: {name_of(s.purchases[r.event.purchase or ''])}"],
    "ended_elsewhere": lambda r, s: [f"The rental ended without us: {r.event.data.get('by')}"],
    "reappeared": lambda r, s: ["The rental is there again: it bills"],
    "alarm": lambda r, s: [f"ALARM: {r.event.data['message']}"],
    "extended": lambda r, s: [f"Extended: deadline {rfc3339(s.deadline)}, limit {rfc3339(s.limit)}; every layer was read back"],
    "shortened": lambda r, s: [f"Shortened: deadline {rfc3339(s.deadline)}, limit {rfc3339(s.limit)}"],
    "reconciled": _reconciled,
    "closed": lambda r, s: [f"Closed. Spent {money_text(s.spent(r.at))} (accrued estimate)"],
    "attempted": _attempted,
}  # fmt: skip
