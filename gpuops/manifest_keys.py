"""The keys of a manifest as pydantic models: types, defaults and one sentence each. `manifest` turns them into a spec.

The texts in `description` go into the JSON Schema, which editors show; `manifests/reference.yaml` explains more.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gpuops import units

FIRST_USE = "trust on first use, accepted"


def _text(read: Callable[[str], Any]) -> BeforeValidator:
    """Run a reader on the text of a scalar; a default that is no text has been checked by its author."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)):
            raise ValueError("must be a single value, not a list or a mapping")
        return read(value) if isinstance(value, str) else value

    return BeforeValidator(check)


def _duration(text: str) -> float:
    seconds = units.duration_s(text)
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _amount(text: str) -> Decimal:
    amount = units.money(text)[0]
    if amount <= 0:
        raise ValueError("must be more than 0")
    return amount


def _deadline(text: str) -> tuple[float, float]:
    """Returns (seconds from approval, seconds since 1970); one of them is 0."""
    if re.match(r"[0-9]{4}-", text):
        return 0.0, units.instant(text)
    return _duration(text), 0.0


def _plain(text: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("must not contain control characters such as line breaks")
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _host_path(text: str) -> str:
    _plain(text)
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is a path on the host and must be absolute (begin with /)")
    normal = posixpath.normpath("/" + text.lstrip("/"))
    if normal != text.rstrip("/") or text == "/":
        hint = f"write {normal}" if normal != "/" else "/ itself is not accepted"
        raise ValueError(f"{text!r} is not a plain path on the host: {hint}")
    if normal.split("/")[1] in ("proc", "sys", "dev"):
        raise ValueError(f"{normal} belongs to the host's kernel")
    return normal


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a network: write it as 198.51.100.7/32 or 2001:db8::/48") from None


def _matching(pattern: str, message: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {message}")
        return text

    return AfterValidator(check)


def _schema(kind: str | list[str], **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, **more})


Duration = Annotated[float, _text(_duration), _schema("string", pattern=units.DURATION_PATTERN)]
Size = Annotated[int, _text(units.size_bytes), _schema("string", pattern=units.SIZE_PATTERN)]
Amount = Annotated[Decimal, _text(_amount), _schema(["number", "string"], pattern=units.MONEY_PATTERN)]
Deadline = Annotated[tuple[float, float], _text(_deadline), _schema("string")]
Whole = Annotated[int, _text(_whole), _schema("integer", minimum=0)]
Flag = Annotated[bool, _text(_flag), _schema("boolean")]
Plain = Annotated[str, AfterValidator(_plain)]
Scalar = Annotated[str, _schema(["string", "number", "boolean"])]
HostPath = Annotated[str, AfterValidator(_host_path), _schema("string", pattern="^/.+")]
Network = Annotated[str, AfterValidator(_network)]
Name = Annotated[
    str, _matching(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", "must be 1 to 40 of a-z, 0-9 and -, without - at the ends")
]
Owner = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", "must be 1 to 64 letters, digits and . _ @ + -")]
VariableName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "is not the name of an environment variable")]
Version = Annotated[str, _matching(r"[0-9]+(\.[0-9]+){0,3}", "is not a version: write dotted numbers such as 550.54")]


Sha256 = Annotated[
    str,
    _matching(r"[0-9a-f]{64}", "is not a sha256: 64 digits of 0-9 and a-f"),
    _schema("string", pattern="^[0-9a-f]{64}$"),
]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(_Keys):
    """What to rent."""

    device: Plain = Field(description="Accelerator that the offer's device name must contain, such as A100.")
    count: Whole = Field(1, description="How many of them in one machine.")
    memory: Size = Field(0, description="Least memory of each device, such as 80GB.")
    region: Plain | None = Field(None, description="Region; without it the cheapest one.")
    offer: Plain | None = Field(None, description="Exact id of an offer; without it the cheapest that fits.")
    disk: Size = Field(0, description="Disk to rent with the machine; without it what the offer comes with.")
    image: Plain | None = Field(None, description="Image to start; without it the provider's default.")
    max_price_per_hour: Amount | None = Field(None, description="Refuse offers above this price in USD per hour.")


class Volume(_Keys):
    """A volume that exists already."""

    id: Plain = Field(description="The provider's id of the volume.")
    mount: HostPath = Field(description="Where it must be mounted on the host.")
    min_free: Size = Field(0, description="Least free space on it.")


class Checks(_Keys):
    """What the host must show before anything is sent."""

    driver: Version | None = Field(None, description="Lowest accepted driver version.")
    free: Size = Field(1_000_000_000, description="Least free space where outputs are written.")
    clock_skew: Duration = Field(30.0, description="Largest difference between the host's clock and the provider's.")
    ports: tuple[Whole, ...] = Field((22,), description="The ports that the rental publishes, exactly.")
    on_failure: Literal["down", "hold"] = Field("down", description="Tear down at once, or hold for a look.")


class Host(_Keys):
    """What may be done to the host itself."""

    tools: Literal["refuse", "install"] = Field(
        "refuse",
        description="Install rsync and tmux where they are missing, or refuse to and use what is there instead.",
    )


class Ssh(_Keys):
    """Who reaches the machine."""

    allow_from: tuple[Network, ...] = Field(
        (),
        description="Networks that a firewall of the machine's own lets in; without it this computer's address alone.",
    )


class Git(_Keys):
    """A commit that is sent as it is."""

    repository: Plain = Field(description="Checkout on this computer, relative to the manifest's own folder.")
    commit: Plain = Field("HEAD", description="Any revision; the plan resolves and records the full hash.")
    dirty: Literal["refuse", "patch"] = Field(
        "refuse", description="With HEAD: refuse a checkout with changes, or send and record them as a patch."
    )


class Transfer(_Keys):
    """A folder or a commit that is sent to the host."""

    source: Plain | None = Field(None, description="Folder, relative to the manifest's own folder.")
    git: Git | None = Field(None, description="Instead of source: exactly one commit of a checkout.")
    to: HostPath = Field(description="Where its contents go on the host.")
    exclude: tuple[Plain, ...] = Field((), description="Patterns that are not sent, beside the built-in ones.")
    follow: Flag = Field(False, description="Send what links point to that leave the folder.")
    git_ignored: Literal["exclude", "include"] = Field("exclude", description="What happens to files that git ignores.")


class Expect(_Keys):
    """What the environment of training must hold."""

    python: Version | None = Field(None, description="Version of the interpreter, such as 3.11.")
    torch: Version | None = Field(None, description="Version of torch, such as 2.13.")
    cuda: Version | None = Field(
        None, description="CUDA version that torch was built for, such as 13.0; it must be available."
    )
    devices: Whole | None = Field(
        None, description="Devices that torch must see; with `cuda` the count that is rented."
    )


class Environment(_Keys):
    """What training runs in. With neither `lock` nor `command` it is the image as it is."""

    lock: HostPath | None = Field(
        None, description="Hashed lock file (requirements form) on the host, sent by a transfer."
    )
    command: tuple[Annotated[str, _text(str)], ...] = Field(
        (), description="Command that makes the environment, or completes it after the lock; run once in train.workdir."
    )
    directory: HostPath = Field(
        "/workspace/environments",
        description="Where it is built and wheels are kept; used again when it lies on a volume.",
    )
    expect: Expect = Field(default_factory=lambda: Expect.model_validate({}))


class Probe(_Keys):
    """A few updates before the real ones."""

    updates: Whole = Field(3, description="So many updates, told as GPUOPS_MAX_UPDATES.")
    argv: tuple[Annotated[str, _text(str)], ...] = Field(
        (), description="Program and arguments of the probe; without it those of `train`."
    )
    timeout: Duration = Field(600.0, description="The probe is ended after this.")


class DataRecord(_Keys):
    """What is recorded of an input; bytes and sha256 are also checked."""

    revision: Plain | None = Field(None, description="Revision of the data set.")
    licence: Plain | None = Field(None, description="Licence of the data.")
    tokenizer_sha256: Sha256 | None = Field(None, description="Hash of the tokenizer that the data was made with.")
    preprocessing: Plain | None = Field(None, description="How the data was made.")
    split: Plain | None = Field(None, description="Which part of the data set it is.")
    bytes: Whole | None = Field(None, description="Exact size.")
    sha256: Sha256 | None = Field(None, description="Hash of the file.")


class Input(_Keys):
    """Data that lies on the host, verified, before training starts. Exactly one of https, path, volume and command."""

    to: HostPath = Field(description="Where it must lie on the host; an existing file counts by its sha256 alone.")
    https: Plain | None = Field(None, description="Address from which the host fetches it; without secrets.")
    path: Plain | None = Field(
        None, description="Local file or folder that is sent; relative to the manifest's folder."
    )
    volume: HostPath | None = Field(None, description="File on an attached volume that must hold it already.")
    command: tuple[Annotated[str, _text(str)], ...] = Field(
        (), description="Command on the host that makes the file whose path it gets; no shell reads it."
    )
    sha256: Sha256 | None = Field(None, description="Hash of the file; needed for all but path.")
    bytes: Whole | None = Field(None, description="Exact size of the file.")
    ca: HostPath | None = Field(None, description="CA file on the host for a private server; it may have been sent.")
    data: DataRecord | None = Field(None, description="What is recorded of the data.")


class Train(_Keys):
    """The program to run."""

    argv: tuple[Annotated[str, _text(str)], ...] = Field(
        min_length=1, description="Program and arguments, one per item."
    )
    workdir: HostPath = Field(description="Folder on the host in which it starts.")
    resume_argument: Plain | None = Field(
        None, description="Put before the generation's path when resuming, such as --resume."
    )
    resume: Whole = Field(
        0, description="How often a lost machine is replaced and training goes on from the newest verified copy."
    )
    wall_clock: Duration | None = Field(None, description="Longest training time; without it until the deadline.")
    grace: Duration = Field(30.0, description="Time between asking the program to stop and killing it.")
    max_updates: Whole = Field(0, description="Stop after this many updates; 0 is no limit.")
    max_tokens: Whole = Field(0, description="Stop after this many tokens; 0 is no limit.")
    probe: Probe | None = Field(None, description="Measure a few updates first; what does not fit is not launched.")


class Outputs(_Keys):
    """Where results appear and where they are copied to."""

    directory: HostPath = Field(description="Folder on the host in which the program publishes generations.")
    copy_to: Plain = Field(description="Local folder for verified copies, relative to the manifest's own folder.")
    keep_last: Whole = Field(2, description="How many verified generations to keep; at least 2.")
    best: Plain | None = Field(None, description="Heartbeat field whose lowest generation is kept too, such as loss.")
    mirror: Flag = Field(True, description="Copy published generations while training runs.")
    load_check: tuple[Annotated[str, _text(str)], ...] = Field(
        (), description="Command that must load a generation on the host."
    )
    expected_bytes: Size = Field(0, description="Expected size of a generation, for the plan's time and room.")


class Budget(_Keys):
    """The money."""

    cap: Amount = Field(description="The most that this run may cost, up to its limit, in USD.")


class Timeouts(_Keys):
    """How long each step on the way to training may take; what is not given is the provider's or the policy's number."""

    allocate: Duration | None = Field(None, description="From the create call to a running host or its image.")
    image: Duration | None = Field(None, description="Fetching the image, where the provider tells that it does.")
    ssh: Duration | None = Field(None, description="From the host's address to a host that was reached and checked.")
    checks: Duration | None = Field(None, description="One look at the host.")
    environment: Duration | None = Field(None, description="Making the environment of training.")
    first_update: Duration | None = Field(None, description="From the start of training to an update or generation.")


class Teardown(_Keys):
    """When the end begins by itself."""

    when: Literal["ended", "manual"] = Field(
        "ended", description="When training ended, or only at the deadline or on `down`."
    )
    keep_failed: Duration | None = Field(None, description="How long a failed run stays up for a look.")


class Manifest(_Keys):
    """A gpuops manifest: what to rent, send, run, keep and spend."""

    name: Name = Field(description="Name of the run; part of its id and of the rental's name.")
    owner: Owner | None = Field(None, description="Who pays and is asked; default $GPUOPS_OWNER, else user@host.")
    provider: Name = Field(description="Which provider to rent from; `gpuops providers` lists them.")
    members: Whole = Field(1, description="Number of machines; only 1 for now.")
    resources: Resources
    volumes: tuple[Volume, ...] = Field((), description="Existing volumes to attach.")
    checks: Checks = Field(default_factory=lambda: Checks.model_validate({}))
    ssh: Ssh = Field(default_factory=lambda: Ssh.model_validate({}))
    host: Host = Field(default_factory=lambda: Host.model_validate({}))
    transfers: tuple[Transfer, ...] = Field((), description="Folders to send.")
    inputs: tuple[Input, ...] = Field((), description="Data that the host must hold before training starts.")
    max_total: Size = Field(2_000_000_000, description="Refuse to send more than this in total.")
    inputs_sha256: HostPath | None = Field(
        None, description="Hash list on the host (sha256sum form) that inputs must match."
    )
    env: dict[VariableName, Scalar] = Field(
        default_factory=dict, description="Environment of the program; never secrets."
    )
    caches: HostPath | None = Field(
        None,
        description="Folder on the host, best on a volume, for what is downloaded: Hugging Face hub, datasets, xet, torch.",
    )
    offline: Flag = Field(False, description="Libraries may download nothing: what is not in the caches is an error.")
    secrets: tuple[VariableName, ...] = Field((), description="Names of secrets, read from keyring or environment.")
    environment: Environment | None = Field(None, description="What training runs in, and what it must hold.")
    train: Train
    outputs: Outputs
    budget: Budget
    deadline: Deadline = Field(
        description="Teardown is complete by then: a duration from approval, or a time with zone."
    )
    hold: Duration = Field(
        900.0, description="From the deadline to the limit, at which everything ends, copied or not."
    )
    setup: Duration = Field(1800.0, description="A machine that is ready but not launched goes down after this.")
    timeouts: Timeouts = Field(default_factory=lambda: Timeouts.model_validate({}))
    teardown: Teardown = Field(default_factory=lambda: Teardown.model_validate({}))
    on: dict[Name, dict[str, Any]] = Field(
        default_factory=dict,
        description="Per provider: keys that hold there instead of those above; name and provider never.",
    )
    host_key: Literal["trust on first use, accepted"] | None = Field(
        None, description="Only where a provider offers no way to pin the host key."
    )
