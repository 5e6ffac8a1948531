"""Where each tree that is sent lies on this computer: as the manifest names it, or made from a commit or for a single file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gpuops import gitsource, sending
from gpuops.errors import HostError
from gpuops.ports import Clock
from gpuops.spec import Input, Spec, Transfer
from gpuops.values import Time


def pin(spec: Spec, clock: Clock) -> Spec:
    """The spec with every commit resolved, for the plan. Raises `UsageError` and `GateRefused`."""
    return replace(
        spec, transfers=tuple(replace(t, git=gitsource.pin(t.git, clock)) if t.git else t for t in spec.transfers)
    )


def send_bytes(spec: Spec, clock: Clock, until: Time) -> int:
    """How much goes over this computer's line, as far as it is known before the dry run. Raises `GpuopsError`."""
    paths = [i for i in spec.inputs if i.kind == "path"]
    folders = [Transfer(i.source, i.to, include_ignored=True) for i in paths if os.path.isdir(i.source)]
    try:
        size = sum(os.stat(i.source).st_size for i in paths if not os.path.isdir(i.source))
    except OSError as error:
        raise HostError(f"cannot be read here: {error}") from error
    size += sum(gitsource.size(t.git, clock) for t in spec.transfers if t.git)
    plain = [t for t in spec.transfers if not t.git]
    return size + sending.total_bytes(replace(spec, transfers=(*plain, *folders)), clock, until)


def keep_patches(spec: Spec, folder: Path, clock: Clock) -> None:
    """Keep in a run's folder what only exists now: the patches of the checkouts."""
    for git in [t.git for t in spec.transfers if t.git]:
        gitsource.save_patch(git, folder / "git", clock)


def located(spec: Spec, folder: Path, clock: Clock, until: Time) -> tuple[Spec, tuple[str, ...]]:
    """The spec in which every transfer, and every input that is sent from here, has a folder; and what differs from a commit."""
    trees: list[Transfer] = []
    said: list[str] = []
    for transfer in spec.transfers:
        if transfer.git is None:
            trees.append(transfer)
            continue
        path, differs = gitsource.tree(transfer.git, folder / "git", clock, until)
        said += [d for d in differs if d not in transfer.git.notes]
        # git decided what is in it
        trees.append(replace(transfer, source=path, include_ignored=True))
    for index, item in enumerate(i for i in spec.inputs if i.kind == "path"):
        trees.append(_input_tree(item, folder / "inputs" / str(index)))
    return replace(spec, transfers=tuple(trees)), tuple(said)


def _input_tree(item: Input, folder: Path) -> Transfer:
    """A folder as it is; for one file a folder of our own with a link to it, which is followed."""
    if os.path.isdir(item.source):
        return Transfer(item.source, item.to, include_ignored=True)
    if not os.path.isfile(item.source):
        raise HostError(f"{item.source} is not there any more")
    link = folder / os.path.basename(item.to)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not link.is_symlink() or os.readlink(link) != item.source:
        link.unlink(missing_ok=True)
        os.symlink(item.source, link)
    return Transfer(str(folder), os.path.dirname(item.to), follow=True, include_ignored=True)
