"""A git checkout with one commit, for tests."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuops.spec import GitSource


class Repository:
    """A checkout with one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")
        self.write("train.py", "print(1)\n")
        self.write("pkg/mod.py", "x = 1\n")
        os.symlink("train.py", path / "link")
        self.commit()

    def git(self, *words: str) -> str:
        me = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *words], cwd=self.path, env={**os.environ, **me}, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "x")
        return self.git("rev-parse", "HEAD")

    def source(self, **more: Any) -> GitSource:
        return replace(GitSource(str(self.path)), **more)
