"""Generations: complete checkpoints, published by one rename, with their hash list written last.

A folder `step-000200` is not there or is whole: MANIFEST.json names every file with size and sha256. What lies in the
output folder under `.tmp-` is unfinished work of a program that was killed.
"""

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


class UnusableError(Exception):
    """A generation that must not be resumed from."""


def publish(output: Path, step: int, arrays: dict[str, dict[str, Any]], state: dict[str, Any], metric: float) -> Path:
    """Write a complete generation and return its path. An equal one that is there already is left as it is."""
    work = output / f".tmp-step-{step:06d}-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for name, named in arrays.items():
        _write(work / name, functools.partial(np.savez, **named))
    text = json.dumps(state, sort_keys=True).encode() + b"\n"
    _write(work / "state.json", lambda file: file.write(text))
    files = [_listed(work / name) for name in sorted([*arrays, "state.json"])]
    manifest = json.dumps({"files": files, "step": step, "metric": metric}, indent=1).encode() + b"\n"
    _write(work / "MANIFEST.json", lambda file: file.write(manifest))
    _sync_folder(work)
    final, copy = output / f"step-{step:06d}", 1
    while final.exists():
        if (final / "MANIFEST.json").is_file() and (final / "MANIFEST.json").read_bytes() == manifest:
            shutil.rmtree(work)
            return final
        # Never write over what was published once, even if this run disagrees with it.
        copy += 1
        final = output / f"step-{step:06d}.{copy}"
    os.rename(work, final)
    _sync_folder(output)
    return final


def read(path: Path, names: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The arrays and the state of a generation, after its hashes were compared. Raises `UnusableError`."""
    try:
        manifest = json.loads((path / "MANIFEST.json").read_bytes())
        for listed in manifest["files"]:
            if _listed(path / listed["path"]) != listed:
                raise UnusableError(f"{path / listed['path']} differs from its hash list")
        arrays = {}
        for name in names:
            with np.load(path / name, allow_pickle=False) as archive:
                arrays[name] = {key: archive[key] for key in archive.files}
        return arrays, json.loads((path / "state.json").read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableError(f"{path} is not a complete generation: {error}") from error


def complete(output: Path) -> list[Path]:
    """Published generations, oldest first."""
    found = [p for p in output.glob("step-*") if (p / "MANIFEST.json").is_file()]
    return sorted(found, key=lambda p: (p.name.partition(".")[0], p.stat().st_mtime_ns, p.name))


def prune(output: Path, keep: int) -> None:
    """Remove the oldest beyond `keep`, never one of the newest two; renamed first, so that none is seen half gone."""
    for path in complete(output)[: -max(2, keep)]:
        gone = output / f".tmp-old-{path.name}-{os.getpid()}"
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def clear_unfinished(output: Path) -> None:
    """Remove what a killed predecessor left behind; only one program at a time writes here."""
    for path in [*output.glob(".tmp-step-*"), *output.glob(".tmp-old-*")]:
        shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    with path.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def _listed(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"path": path.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main() -> int:
    """Load the generation named on the command line, as the manifest's `load_check` asks; returns the exit code."""
    try:
        arrays, state = read(Path(sys.argv[1]), ("weights.npz", "optimizer.npz"))
        if not all(np.isfinite(a).all() for named in arrays.values() for a in named.values()):
            raise UnusableError(f"{sys.argv[1]} holds numbers that are not finite")
    except UnusableError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"update {state['step']} loads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
