"""Transfer: a dry run makes the list, a person approves its digest, then exactly that list goes over and is verified.

Inputs come after it, because what fetches them may have been sent: the host brings them itself, each verified before it counts.
"""

from __future__ import annotations

from functools import partial

from gpuops.codec import to_json
from gpuops.errors import HostError, ListChanged, Unreachable
from gpuops.policy import Policy
from gpuops.ports import Ports
from gpuops.state import RunState
from gpuops.steps import Ask, Do, Step, Wait, attempted, bounded, fact
from gpuops.values import Endpoint, Event, SendList, Time

MOST_LISTINGS = 5


def transfer(s: RunState, now: Time, policy: Policy) -> Step | None:
    """List, ask, send."""
    p = s.rental
    if p is None or p.life != "created" or s.wanted != "training" or not p.work.checks_ok or p.work.sent is not None:
        return None
    if p.endpoint is None:
        return None
    failed = s.failures("transfer", p.id)
    if failed and failed.final:
        return None
    due = s.due("transfer", policy, p.id)
    if due > now:
        return Wait(due, "transferring again")
    preview = p.work.preview
    if preview is None:
        effect = partial(_list, endpoint=p.endpoint)
        return Do("transfer", effect, bounded(now, policy.bulk_slice_s * 5, s.limit), p.id, detail="rsync dry run")
    if preview.digest not in s.approved:
        return Ask("Send these files?", preview.digest)
    if p.work.delivered is not None:
        bring = partial(_bring, endpoint=p.endpoint)
        return Do("transfer", bring, bounded(now, policy.transfer_slice_s, s.limit, s.deadline), p.id, detail="inputs")
    send = partial(_send, endpoint=p.endpoint, approved=preview)
    return Do("transfer", send, bounded(now, policy.transfer_slice_s, s.limit, s.deadline), p.id, detail="sending")


def _list(ports: Ports, s: RunState, do: Do, endpoint: Endpoint) -> tuple[Event, ...]:
    try:
        preview = ports.host.preview(s.run, endpoint, s.spec, do.until)
    except Unreachable as error:
        return (attempted("transfer", error.message, do.purchase),)
    except HostError as error:
        return (attempted("transfer", error.message, do.purchase, final=True),)
    return (fact("listed", do.purchase, preview=to_json(preview)),)


def _send(ports: Ports, s: RunState, do: Do, endpoint: Endpoint, approved: SendList) -> tuple[Event, ...]:
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("transfer", "another process of this computer is transferring", do.purchase, busy=True),)
        begun = ports.clock.now()
        try:
            files, size = ports.host.send(s.run, endpoint, s.spec, approved, do.until)
        except ListChanged:
            # the new list is another question; the rental does not end because somebody saved a file
            return _list_again(ports, s, do, endpoint, approved)
        except Unreachable as error:
            return (attempted("transfer", error.message, do.purchase),)
        except HostError as error:
            return (attempted("transfer", error.message, do.purchase, final=True),)
    seconds = round(ports.clock.now() - begun, 3)
    if s.spec.inputs:
        return (fact("sent", do.purchase, files=files, bytes=size, seconds=seconds),)
    return (fact("transferred", do.purchase, files=files, bytes=size, seconds=seconds),)


def _list_again(ports: Ports, s: RunState, do: Do, endpoint: Endpoint, approved: SendList) -> tuple[Event, ...]:
    """Another dry run; a few of them are enough to see that the list does not stand still, as with a log that lies in it."""
    events = _list(ports, s, do, endpoint)
    made = s.purchases[do.purchase or ""].work.listings
    if made < MOST_LISTINGS or events[0].kind != "listed":
        return events
    sizes = {file["path"]: file["size"] for tree in events[0].data["preview"]["trees"] for file in tree[1]}
    moving = [f.path for _, files in approved.trees for f in files if sizes.get(f.path) != f.size]
    what = ", ".join(moving[:3]) or "a file"
    why = f"{what} changed each of the {made} times that the list was made: exclude it, or write it elsewhere"
    return (attempted("transfer", why, do.purchase, final=True),)


def _bring(ports: Ports, s: RunState, do: Do, endpoint: Endpoint) -> tuple[Event, ...]:
    work = s.purchases[do.purchase or ""].work
    missing = tuple(i for i in s.spec.inputs if i.to not in work.inputs)
    with ports.locks.bulk(s.run) as mine:
        if not mine:
            return (attempted("transfer", "another process of this computer is transferring", do.purchase, busy=True),)
        try:
            seen = ports.host.bring(s.run, endpoint, s.spec, missing, do.until, ports.progress)
        except Unreachable as error:
            return (attempted("transfer", error.message, do.purchase),)
        except HostError as error:
            return (attempted("transfer", error.message, do.purchase, final=True),)
    asked = {i.to: i for i in missing}
    there = [
        {**to_json(i), "source": asked[i.to].source or list(asked[i.to].argv), "data": dict(asked[i.to].data)}
        for i in seen.done
    ]
    events = [fact("brought", do.purchase, inputs=there)]
    if seen.problem:
        events.append(attempted("transfer", seen.problem, do.purchase, final=seen.final))
    elif len(there) == len(missing):
        files, size = work.delivered or (0, 0)
        size += sum(work.inputs.values()) + sum(i.bytes for i in seen.done if i.how != "sent")
        files += len([i for i in s.spec.inputs if i.kind != "path"])
        events.append(fact("transferred", do.purchase, files=files, bytes=size))
    return tuple(events)
