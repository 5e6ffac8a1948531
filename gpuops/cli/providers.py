"""`gpuops providers`: what is installed and what it can do."""

from __future__ import annotations

from gpuops.cli.context import make_app
from gpuops.cli.options import Json, command_app
from gpuops.codec import to_json
from gpuops.errors import GpuopsError
from gpuops.registry import names
from gpuops.render import table

app = command_app()


@app.command()
def providers(json: Json = False) -> None:
    """The installed providers and what they can and cannot do.

    Example: gpuops providers --json
    """
    context = make_app(as_json=json)
    found: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for name in names():
        try:
            traits = context.provider(name).traits
        except GpuopsError as error:
            found.append({"name": name, "traits": None, "problem": error.message})
            rows.append((name, "-", "-", "-", "-", error.message))
            continue
        found.append({"name": name, "traits": to_json(traits)})
        rows.append(
            (name, traits.deadline, traits.host_key_route, "yes" if traits.idempotency_token else "search by mark",
             ", ".join(traits.outlives) or "nothing", "simulated devices" if traits.simulated else "")
        )  # fmt: skip
    if json:
        context.printer.document({"providers": found})
    else:
        head = ("provider", "own timer", "host key", "create token", "outlives a rental", "note")
        context.printer.lines(table(rows, head))
