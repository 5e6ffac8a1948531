"""Ends, stops or starves gpuops at its own journal appends. On PYTHONPATH, so that every gpuops process inherits it.

The product knows nothing of it: when `gpuops.journal` is imported, its transactions get counted in a file, one line each:
role, kinds of the records, pid. The count goes on over all processes of a role, so that a point is met once.

    GPUOPS_TEST_APPENDS=FILE       where to count
    GPUOPS_TEST_POINTS=POINT,...   POINT is DEED:ROLE:WHEN:AT
        DEED   kill (SIGKILL), kill+parent (its parent too: the guard as a whole is gone), stop (SIGSTOP),
               full (no file of this process grows any more: its next commit meets what a full disk does)
        ROLE   cli, child or parent (of the guard)
        WHEN   before or after the commit
        AT     the number of the append, from 1 on; or `kind`, `kind#2` …: the first, second append that holds one; or `*`
    GPUOPS_TEST_WHILE=FILE         the points count only while FILE exists
"""

import contextlib
import fcntl
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys

_MODULE = "gpuops.journal"


def role():
    """Which part of gpuops this process is."""
    words = sys.orig_argv
    if "guard" not in words or "--once" in words:
        return "cli"
    return "child" if "--run" in words else "parent"


def count(kinds):
    """Write down one append of this role; returns its number and its names in AT."""
    with open(os.environ["GPUOPS_TEST_APPENDS"], "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        earlier = [line.split(" ")[1].split("+") for line in file if line.split(" ", 1)[0] == role()]
        file.write(f"{role()} {'+'.join(kinds) or '-'} {os.getpid()}\n")
    names = {"*", str(len(earlier) + 1)}
    for kind in kinds:
        times = 1 + sum(kind in line for line in earlier)
        names |= {f"{kind}#{times}"} | ({kind} if times == 1 else set())
    return names


def strike(names, kinds, when):
    """Do what is asked for at this point."""
    flag = os.environ.get("GPUOPS_TEST_WHILE")
    if flag and not os.path.exists(flag):
        return
    for point in filter(None, os.environ.get("GPUOPS_TEST_POINTS", "").split(",")):
        deed, who, moment, at = point.split(":")
        if (who, moment) != (role(), when) or at not in names:
            continue
        with open(os.environ["GPUOPS_TEST_APPENDS"] + ".struck", "a") as file:
            file.write(f"{who} {when} {'+'.join(kinds)}\n")
        if deed == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            if deed == "kill+parent":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def patch(journal):
    """Count the transactions of the journal class."""
    transaction, insert = journal._transaction, journal._insert

    @contextlib.contextmanager
    def counted(self):
        self.test_kinds = []
        with transaction(self):
            yield
            names = count(self.test_kinds)
            strike(names, self.test_kinds, "before")
        strike(names, self.test_kinds, "after")

    def noted(self, run, seq, event, *rest):
        self.test_kinds.append(event.kind)
        return insert(self, run, seq, event, *rest)

    journal._transaction, journal._insert = counted, noted


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module and patches it after it was executed."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def execute(module):
            run(module)
            patch(module.SqliteJournal)

        spec.loader.exec_module = execute
        return spec


if os.environ.get("GPUOPS_TEST_APPENDS"):
    sys.meta_path.insert(0, Finder())
