#!/usr/bin/env python3
"""Collects the demo's training text: the source of this machine's Python standard library.

usage: collect.py [FOLDER]        default: the folder `input` beside this file

Writes corpus.txt, data-manifest.json (where the text comes from) and inputs.sha256 (checked on the host).
The same Python gives the same bytes; what is there already and still right is left alone.
"""

import hashlib
import json
import os
import platform
import sys
import sysconfig
from pathlib import Path

LIMIT_BYTES = 3_000_000
# Tests and bundled third-party code are left out: other licences, and not what the library reads like.
LEFT_OUT = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "turtledemo",
    "__pycache__",
}


def library_files(library: Path) -> list[Path]:
    """The library's source files in an order that does not depend on the file system."""
    files = (p for p in library.rglob("*.py") if not LEFT_OUT & set(p.relative_to(library).parts) and p.is_file())
    return sorted(files, key=lambda p: p.relative_to(library).as_posix())


def collect(library: Path) -> tuple[bytes, list[dict[str, object]]]:
    """The text, up to the limit, and a list of what is in it."""
    pieces: list[bytes] = []
    listed: list[dict[str, object]] = []
    room = LIMIT_BYTES
    for path in library_files(library):
        try:
            data = path.read_text(encoding="utf-8").encode()
        except (UnicodeDecodeError, OSError):
            continue
        if not data or len(data) + 1 > room:
            continue
        room -= len(data) + 1
        pieces.append(data)
        name = path.relative_to(library).as_posix()
        listed.append({"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return b"\n".join(pieces) + b"\n", listed


def write(path: Path, data: bytes) -> None:
    """Replace by rename, so that nobody ever reads half a file."""
    if path.is_file() and path.read_bytes() == data:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def main() -> int:
    """Collect into the folder; returns the exit code."""
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).resolve().parent / "input"
    corpus, files = collect(Path(sysconfig.get_paths()["stdlib"]))
    if len(corpus) < 100_000:
        print(
            f"found only {len(corpus)} bytes of the standard library's source: install Python's full library",
            file=sys.stderr,
        )
        return 1
    about = {
        "source": "source files of the Python standard library",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "licence": "PSF-2.0 (https://docs.python.org/3/license.html)",
        "bytes": len(corpus),
        "sha256": hashlib.sha256(corpus).hexdigest(),
        "files": files,
    }
    contents = {"corpus.txt": corpus, "data-manifest.json": json.dumps(about, indent=1).encode() + b"\n"}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {**contents, "inputs.sha256": sums.encode()}.items():
        write(folder / name, data)
    print(f"{folder}: {len(files)} files, {len(corpus):,} bytes, {about['python']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
