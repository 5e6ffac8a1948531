"""From a manifest (YAML) to a frozen spec. Every complaint names file, line and key; all of them are reported at once.

`load` is what the commands call. The keys stand in `manifest_keys`; what one key alone cannot show is checked here.
"""

from __future__ import annotations

import difflib
import getpass
import os
import re
import socket
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gpuops import manifest_data, manifest_keys, yamlpos
from gpuops.errors import ManifestError
from gpuops.manifest_checks import CHECKS, Problem
from gpuops.manifest_keys import FIRST_USE, Manifest
from gpuops.spec import Checks, Environment, Outputs, Probe, Spec, Teardown, Timeouts, Train
from gpuops.values import Money, Need, VolumeUse
from gpuops.yamlpos import Document, KeyPath

GB = 1_000_000_000
_EVERYWHERE = ("name", "provider", "owner", "on")
_SHOWN_PROBLEMS = 20


def load(path: str | Path, *, environ: Mapping[str, str] | None = None, now: float | None = None) -> Spec:
    """Read and check the manifest at `path`; relative paths in it start at its own folder.

    `environ` (default: this process's) gives owner and home folder; with `now` a deadline in the past is refused.
    Raises `ManifestError` at the first complaint, with all others in its message.
    """
    environ = os.environ if environ is None else environ
    document, keys = _keys(yamlpos.read(Path(path)))
    folder = Path(os.path.abspath(path)).parent
    spec = _spec(keys, folder, environ, str(Path(os.path.abspath(path))))
    problems = [problem for check in CHECKS for problem in check(keys, spec)]
    if keys.owner is None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", spec.owner):
        problems.append((("owner",), f"$GPUOPS_OWNER is {spec.owner!r}: must be 1 to 64 letters, digits and . _ @ + -"))
    if now is not None and 0 < spec.deadline_at <= now:
        problems.append((("deadline",), "lies in the past"))
    if problems:
        raise _all([(document, problem) for problem in problems])
    return spec


def _keys(document: Document) -> tuple[Document, Manifest]:
    """The checked keys for the provider that the manifest names, and the document with that provider's block laid over it.

    The blocks of the other providers are checked, too: a manifest that moves to another cloud should find no old typo there.
    """
    given, chosen = document.value.get("on"), document.value.get("provider")
    blocks = {n: b for n, b in given.items() if isinstance(b, dict)} if isinstance(given, dict) else {}
    complaints: list[tuple[Document, Problem]] = []
    for name, block in blocks.items():
        complaints += [
            (document, (("on", name, key), "is the same on every provider")) for key in _EVERYWHERE if key in block
        ]
    laid = {name: yamlpos.overlaid(document, ("on", name)) for name in blocks}
    for name, other in laid.items():
        if name != chosen:
            other.value["provider"] = name
            complaints += [(other, problem) for problem in _validated(other)[1]]
    mine = laid.get(str(chosen), document)
    keys, problems = _validated(mine)
    complaints += [(mine, problem) for problem in problems]
    if keys is None or complaints:
        raise _all(complaints)
    return mine, keys


def _validated(document: Document) -> tuple[Manifest | None, list[Problem]]:
    try:
        return Manifest.model_validate(document.value), []
    except ValidationError as error:
        return None, [_plain_words(document, dict(item)) for item in error.errors(include_url=False)]


def export_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, for editors; `manifests/schema.json` holds it."""
    schema = Manifest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# --- complaints ----------------------------------------------------------------------------------------------------


def _all(problems: list[tuple[Document, Problem]]) -> ManifestError:
    """One error out of many, in the order of the file; what two providers share is said once."""
    told = [(doc.line(path), doc.shown(path), text) for doc, (path, text) in problems]
    file = problems[0][0].file
    ordered = sorted(dict.fromkeys(told), key=lambda t: t[0])
    (line, key, message), *others = ordered
    texts = [f"{file}:{at}: {name}: {text}" for at, name, text in others]
    if texts:
        more = [f"and {len(texts) - _SHOWN_PROBLEMS} more"] if len(texts) > _SHOWN_PROBLEMS else []
        message = "\n".join([message, *texts[:_SHOWN_PROBLEMS], *more])
    return ManifestError(message, file=file, line=line, key=key)


def _plain_words(document: Document, item: dict[str, Any]) -> Problem:
    """Translate one of pydantic's complaints."""
    path: KeyPath = tuple(part for part in item["loc"] if part != "[key]")
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return path, _unknown_key(path)
    if kind == "missing":
        return path, "is required"
    if kind == "value_error":
        return path, str(context["error"])
    if kind == "literal_error":
        return path, f"must be {context['expected'].replace(chr(39), '')}, not {item['input']!r}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return path, "must be a mapping: lines of the form `key: value`"
    if kind in ("tuple_type", "list_type"):
        return path, "must be a list: lines that begin with `- `"
    if kind == "string_type":
        return path, "must be text"
    if kind == "too_short":
        return path, "must not be empty"
    return path, str(item["msg"])


def _unknown_key(path: KeyPath) -> str:
    known = list(_model_at(path[:-1]).model_fields)
    key = str(path[-1])
    if key == "<<":
        return "merge keys are not accepted: write the values out"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.7)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; known here: {', '.join(known)}"


def _model_at(path: KeyPath) -> type[BaseModel]:
    """The model that describes the mapping at `path`."""
    model: type[BaseModel] = Manifest
    for part in path:
        if isinstance(part, str):
            model = next(_models_in(model.model_fields[part].annotation))
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


# --- the spec ------------------------------------------------------------------------------------------------------


def _spec(keys: Manifest, folder: Path, environ: Mapping[str, str], path: str) -> Spec:
    resources, outputs = keys.resources, keys.outputs

    def local(text: str) -> str:
        return _local(text, folder, environ)

    return Spec(
        name=keys.name,
        owner=keys.owner or default_owner(environ),
        provider=keys.provider,
        need=Need(
            device=resources.device,
            count=resources.count,
            region=resources.region,
            offer=resources.offer,
            disk_gb=resources.disk / GB,
            max_price_per_hour=resources.max_price_per_hour,
        ),
        image=resources.image or "",
        disk_gb=resources.disk / GB,
        volumes=tuple(VolumeUse(v.id, v.mount, v.min_free / GB) for v in keys.volumes),
        checks=_checks(keys),
        transfers=manifest_data.transfers(keys, local),
        max_total_bytes=keys.max_total,
        inputs_sha256=keys.inputs_sha256 or "",
        env=tuple(sorted({**_cache_variables(keys), **keys.env}.items())),
        secrets=keys.secrets,
        train=_train(keys.train),
        outputs=Outputs(
            directory=outputs.directory,
            destination=local(outputs.copy_to),
            keep_last=outputs.keep_last,
            best=outputs.best or "",
            mirror=outputs.mirror,
            load_check=outputs.load_check,
            expected_bytes=outputs.expected_bytes,
        ),
        cap=Money(keys.budget.cap),
        deadline_s=keys.deadline[0],
        deadline_at=keys.deadline[1],
        hold_s=keys.hold,
        setup_s=keys.setup,
        teardown=Teardown(keys.teardown.when, keys.teardown.keep_failed or 0.0),
        accept_first_use=keys.host_key == FIRST_USE,
        manifest_path=path,
        environment=_environment(keys),
        host_tools=keys.host.tools,
        inputs=manifest_data.inputs(keys, local),
        allow_from=keys.ssh.allow_from,
        timeouts=Timeouts(**{f"{name}_s": seconds or 0.0 for name, seconds in keys.timeouts}),
    )


def _checks(keys: Manifest) -> Checks:
    resources, checks = keys.resources, keys.checks
    return Checks(
        device=resources.device,
        count=resources.count,
        memory_gb=resources.memory / GB,
        driver=checks.driver or "",
        free_gb=checks.free / GB,
        clock_skew_s=checks.clock_skew,
        ports=checks.ports,
        on_failure=checks.on_failure,
    )


def _cache_variables(keys: Manifest) -> dict[str, str]:
    """Variables that put caches where the manifest wants them. HF_HOME is none of them: the token lies in it.

    Source: environment variables of huggingface_hub, datasets, transformers and torch.hub.
    """
    found = {}
    if keys.caches is not None:
        places = {"HF_HUB_CACHE": "hub", "HF_DATASETS_CACHE": "datasets", "HF_XET_CACHE": "xet", "TORCH_HOME": "torch"}
        found = {name: f"{keys.caches}/{folder}" for name, folder in places.items()}
    if keys.offline:
        found |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    return found


def _environment(keys: Manifest) -> Environment | None:
    given = keys.environment
    if given is None:
        return None
    expect = given.expect
    devices = expect.devices if expect.devices is not None else keys.resources.count if expect.cuda else 0
    return Environment(
        lock=given.lock or "",
        command=given.command,
        directory=given.directory,
        python=expect.python or "",
        torch=expect.torch or "",
        cuda=expect.cuda or "",
        devices=devices,
    )


def _train(train: manifest_keys.Train) -> Train:
    return Train(
        argv=train.argv,
        workdir=train.workdir,
        resume_argument=train.resume_argument or "",
        wall_clock_s=train.wall_clock or 0.0,
        grace_s=train.grace,
        max_updates=train.max_updates,
        max_tokens=train.max_tokens,
        resume=train.resume,
        probe=None
        if train.probe is None
        else Probe(train.probe.argv or train.argv, train.probe.updates, train.probe.timeout),
    )


def default_owner(environ: Mapping[str, str]) -> str:
    """`$GPUOPS_OWNER`, else user@host; characters that no provider's tag accepts become `-`."""
    if environ.get("GPUOPS_OWNER"):
        return environ["GPUOPS_OWNER"]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in many containers
        user = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9._@+-]", "-", f"{user}@{socket.gethostname()}")[:64].lstrip("._@+-") or "unknown"


def _local(text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """A path on this computer: `~` expanded, relative to the manifest, without `..`."""
    home = environ.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return os.path.abspath(folder / text)
