"""From a manifest (YAML) to a frozen spec. Every complaint names file, line and key; all of them are reported at once.

`load` is what the commands call. The keys stand in `manifest_keys`; what one key alone cannot show is checked here.
"""

from __future__ import annotations

import difflib
import fnmatch
import getpass
import os
import posixpath
import re
import socket
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gpuops import manifest_data, manifest_keys, shapes, yamlpos
from gpuops.errors import ManifestError
from gpuops.manifest_keys import FIRST_USE, Manifest
from gpuops.spec import Checks, Environment, Outputs, Probe, Spec, Teardown, Train, Transfer
from gpuops.values import Money, Need, VolumeUse
from gpuops.yamlpos import Document, KeyPath, key_text

Problem = tuple[KeyPath, str]

GB = 1_000_000_000
_EVERYWHERE = ("name", "provider", "owner", "on")
_SHOWN_PROBLEMS = 20
_SECRET_ADVICE = "put the name under `secrets` and the value into keyring or environment"


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


# --- what one key alone cannot show --------------------------------------------------------------------------------


def _check_numbers(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    if keys.members != 1:
        yield ("members",), "only 1 is accepted for now"
    if not 1 <= keys.resources.count <= 64:
        yield ("resources", "count"), "must be between 1 and 64"
    if keys.train.resume > 10:
        yield ("train", "resume"), "at most 10: a machine that is lost more often than that needs a person"
    if keys.outputs.keep_last < 2:
        yield ("outputs", "keep_last"), "must be at least 2, so that one damaged generation never is the only one"
    for index, port in enumerate(keys.checks.ports):
        if not 1 <= port <= 65535:
            yield ("checks", "ports", index), f"{port} is not a port (1 to 65535)"
    if 22 not in keys.checks.ports:
        yield ("checks", "ports"), "must contain 22: the host is reached by SSH"
    if keys.teardown.when == "manual" and keys.teardown.keep_failed:
        yield ("teardown", "keep_failed"), "has no effect with `when: manual`: nothing goes down by itself there"


def _check_local(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """Sources exist; the copies do not land inside what is sent next time; only local copies for now."""
    for index, transfer in enumerate(spec.transfers):
        here: KeyPath = ("transfers", index, "source")
        if not transfer.source:
            continue
        if not os.path.exists(transfer.source):
            yield here, f"{transfer.source} does not exist"
        elif not os.path.isdir(transfer.source):
            yield here, f"{transfer.source} is not a folder"
        inner = _inside(spec.outputs.destination, transfer.source)
        if inner is not None and not _excluded(inner, transfer.exclude):
            yield (
                ("outputs", "copy_to"),
                f"lies inside {key_text(here)}: the next run would send the copies; add /{inner} to its exclude",
            )
    if re.match(r"[a-z][a-z0-9+.-]*://", keys.outputs.copy_to) or re.match(r"[^/]+@?[^/]*:", keys.outputs.copy_to):
        yield ("outputs", "copy_to"), "must be a local folder for now"
    elif os.path.exists(spec.outputs.destination) and not os.path.isdir(spec.outputs.destination):
        yield ("outputs", "copy_to"), f"{spec.outputs.destination} is not a folder"


def _check_host_paths(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """What is sent and what is produced on the host stay apart."""
    places: dict[str, KeyPath] = {}
    named = [(("volumes", i, "mount"), v.mount) for i, v in enumerate(spec.volumes)]
    for path, place in [*named, *((("transfers", i, "to"), t.destination) for i, t in enumerate(spec.transfers))]:
        if place in places:
            yield path, f"{place} is already used by {key_text(places[place])}"
        places.setdefault(place, path)
    directory = spec.outputs.directory
    for index, transfer in enumerate(spec.transfers):
        inner = _inside(directory, transfer.destination)
        if inner == "":
            yield ("outputs", "directory"), f"is where transfers[{index}] goes: results must not mix with what was sent"
        elif inner is not None and not _excluded(inner, transfer.exclude):
            yield (
                ("outputs", "directory"),
                f"lies inside transfers[{index}].to: add /{inner} to its exclude",
            )
        if _inside(transfer.destination, directory):
            yield ("transfers", index, "to"), f"lies inside outputs.directory ({directory})"


def _check_environment(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """It is made from a lock that will be there, outside of the results; the probe does something."""
    given, probe = keys.environment, keys.train.probe
    if probe is not None and not 1 <= probe.updates <= 1000:
        yield ("train", "probe", "updates"), "must be between 1 and 1000"
    if given is None:
        return
    if given.lock:
        for inner, transfer in _transfers_to(given.lock, spec):
            local = os.path.join(transfer.source, inner)
            if os.path.isdir(transfer.source) and not os.path.isfile(local):
                yield ("environment", "lock"), f"would be sent from {local}, which does not exist"
            elif os.path.isfile(local) and "--hash=" not in Path(local).read_text(errors="replace"):
                yield (
                    ("environment", "lock"),
                    f"{local} has no hashes: make it with `uv pip compile --generate-hashes` or `pip-compile --generate-hashes`",
                )
    if _inside(given.directory, spec.outputs.directory) is not None:
        yield ("environment", "directory"), "lies in outputs.directory: everything there would be taken for results"


def _transfers_to(path: str, spec: Spec) -> list[tuple[str, Transfer]]:
    """The transfer that brings a file to `path` on the host, with the file's place in it; empty when none does."""
    fitting = [(inner, t) for t in spec.transfers if (inner := _inside(path, t.destination))]
    return sorted(fitting, key=lambda pair: len(pair[0]))[:1]


def _check_inputs(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """A hash list that travels with a transfer must exist here, before money is spent."""
    for inner, transfer in _transfers_to(spec.inputs_sha256, spec):
        local = os.path.join(transfer.source, inner)
        if transfer.source and os.path.isdir(transfer.source) and not os.path.isfile(local):
            yield ("inputs_sha256",), f"would be sent from {local}, which does not exist: make the inputs first"


def _check_secrets(keys: Manifest, spec: Spec) -> Iterator[Problem]:
    """No value of a manifest looks like a secret; names are used once."""
    for name, value in keys.env.items():
        here: KeyPath = ("env", name)
        if name.startswith("GPUOPS_"):
            yield here, "names that begin with GPUOPS_ are set by gpuops itself"
        elif shapes.secret_name(name):
            yield (
                here,
                f"looks like a secret by its name: {_SECRET_ADVICE}",
            )
        elif shapes.secret_value(value):
            yield (
                here,
                f"its value looks like a secret: {_SECRET_ADVICE}",
            )
        if "\0" in value:
            yield here, "must not contain a NUL character"
        on_volume = [v.mount for v in spec.volumes if _inside(value, v.mount) is not None]
        if name in ("HF_HOME", "HF_TOKEN_PATH") and on_volume:
            yield (
                here,
                f"would put a token on the volume at {on_volume[0]}, which others may read: use `caches` for what is large",
            )
    for index, name in enumerate(keys.secrets):
        if name.startswith("GPUOPS_"):
            yield ("secrets", index), "names that begin with GPUOPS_ are set by gpuops itself"
        if name in keys.env:
            yield ("secrets", index), f"{name} stands under env, too"
        if name in keys.secrets[:index]:
            yield ("secrets", index), f"{name} is given twice"
    commands: list[tuple[KeyPath, tuple[str, ...]]] = [
        (("train", "argv"), keys.train.argv),
        (("train", "probe", "argv"), keys.train.probe.argv if keys.train.probe else ()),
        (("environment", "command"), keys.environment.command if keys.environment else ()),
        (("outputs", "load_check"), keys.outputs.load_check),
    ]
    for where, argv in commands:
        for index, argument in enumerate(argv):
            path: KeyPath = (*where, index)
            if "\0" in argument or (index == 0 and not argument.strip()):
                yield path, "must not be empty or contain a NUL character"
            if shapes.secret_value(argument.rpartition("=")[2]) or shapes.secret_value(argument):
                yield path, "looks like a secret; every process on the host can read arguments: use `secrets`"


CHECKS: tuple[Callable[[Manifest, Spec], Iterator[Problem]], ...] = (
    _check_numbers,
    _check_local,
    _check_host_paths,
    _check_inputs,
    _check_environment,
    _check_secrets,
    manifest_data.check_transfers,
    manifest_data.check_inputs,
)


def _inside(path: str, folder: str) -> str | None:
    """The way from `folder` to `path` when it lies inside or is the same (then empty); else None."""
    if path == folder:
        return ""
    return path[len(folder) :].lstrip("/") if path and path.startswith(folder.rstrip("/") + "/") else None


def _excluded(inner: str, patterns: tuple[str, ...]) -> bool:
    """Whether an rsync-like exclude pattern covers `inner`: a leading / anchors it, else any part may match."""
    parts = inner.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for pattern in patterns:
        bare = posixpath.normpath(pattern.strip("/") or ".").removesuffix("/**")
        candidates = parents if pattern.startswith("/") or "/" in bare else parts
        if any(fnmatch.fnmatchcase(candidate, bare) for candidate in candidates):
            return True
    return False
