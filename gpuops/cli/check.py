"""`gpuops check`: is the manifest right, and what does it mean?"""

from __future__ import annotations

import time

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, ManifestPath, command_app
from gpuops.cli.start import read_manifest
from gpuops.codec import to_json
from gpuops.render import money_text
from gpuops.units import duration_text

app = command_app()


@app.command()
def check(manifest: ManifestPath, json: Json = False) -> None:
    """Check a manifest and say what it means; buys nothing.

    Every complaint names file, line and key.

    Example: gpuops check manifests/local-demo.yaml
    """
    context = make_app(as_json=json)
    spec = read_manifest(manifest, time.time())
    if json:
        context.printer.document({"spec": to_json(spec)})
        return
    length = duration_text(spec.deadline_s) if spec.deadline_s else "a fixed time"
    context.printer.lines(
        [
            f"{manifest}: good.",
            f"  Rents {spec.need.count} x {spec.need.device} from {spec.provider} for at most {money_text(spec.cap)}.",
            f"  Sends {len(spec.transfers)} folder(s), runs: {' '.join(spec.train.argv)}",
            f"  Complete by the deadline after {length}; every layer ends it {duration_text(spec.hold_s)} later, copied or not.",
            f"  Checkpoints in {spec.outputs.directory} are copied to {spec.outputs.destination}.",
            "  next: gpuops plan " + str(manifest),
        ]
    )
