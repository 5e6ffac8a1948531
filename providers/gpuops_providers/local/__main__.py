"""The local cloud's console: `python -m gpuops_providers.local list | terminate-all | volume create NAME --gb N`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from gpuops.errors import GpuopsError
from gpuops.values import Scope

from . import create_volume, provider
from .cloud import default_directory

PATIENCE_S = 30.0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--directory", type=Path, default=default_directory(), help="where the cloud lives")
    shared.add_argument("--account", default="default")
    parser = argparse.ArgumentParser(prog="python -m gpuops_providers.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[shared], help="everything that bills, as JSON lines")
    commands.add_parser("terminate-all", parents=[shared], help="end every rental and wait until they are gone")
    volume = commands.add_parser("volume", help="volumes").add_subparsers(dest="action", required=True)
    create = volume.add_parser("create", parents=[shared], help="make a volume")
    create.add_argument("name")
    create.add_argument("--gb", type=float, required=True)
    create.add_argument("--region", default="here")
    return parser


def main(argv: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(argv)
    try:
        if options.command == "volume":
            made = create_volume(options.name, options.gb, options.region, options.directory, options.account)
            print(json.dumps({"id": made.id, "uuid": made.uuid, "region": made.region, "rate": str(made.rate)}))
            return 0
        return _list(options) if options.command == "list" else _terminate_all(options)
    except GpuopsError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code


def _list(options: argparse.Namespace) -> int:
    cloud = provider({"directory": str(options.directory), "account": options.account}, _no_secret)
    inventory = cloud.list_billable(Scope(), time.time() + PATIENCE_S)
    for item in inventory.items:
        seen = cloud.inspect(item.ref, time.time() + PATIENCE_S)
        words = {"kind": item.ref.kind, "id": item.ref.id, "region": item.ref.region, "name": item.name}
        print(json.dumps({**words, "state": seen.state, "rate": str(item.rate), "reason": seen.reason}))
    for gap in inventory.gaps:
        print(f"not readable: {gap.kind} {gap.region} {gap.reason}", file=sys.stderr)
    return 3 if inventory.gaps else 0


def _terminate_all(options: argparse.Namespace) -> int:
    cloud = provider({"directory": str(options.directory), "account": options.account}, _no_secret)
    scope = Scope(("rental",))
    give_up = time.monotonic() + PATIENCE_S
    while True:
        inventory = cloud.list_billable(scope, time.time() + PATIENCE_S)
        billing = [item for item in inventory.items if item.bills]
        if not billing or time.monotonic() > give_up:
            break
        for item in billing:
            cloud.terminate(item.ref, time.time() + PATIENCE_S)
        time.sleep(0.2)
    for item in billing:
        print(f"still billing: {item.ref}", file=sys.stderr)
    for gap in inventory.gaps:
        print(f"not readable: {gap.kind} {gap.reason}", file=sys.stderr)
    return 5 if billing or inventory.gaps else 0


def _no_secret(name: str) -> str | None:
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
