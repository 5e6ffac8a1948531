"""Manifests: good ones become specs, bad ones are refused with file, line, key and a sentence that helps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops import codec, manifest, shapes, units
from gpuops.errors import ManifestError
from gpuops.spec import Spec
from gpuops.values import Money

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "manifests"
CASES = sorted((ROOT / "tests" / "cases" / "manifests").glob("*.yaml"))
NOW = 1_796_000_000.0
MINIMAL = """\
name: small
provider: local
resources: {device: A100}
train: {argv: [python3, train.py], workdir: /workspace/code}
outputs: {directory: /workspace/out, copy_to: results}
budget: {cap: 1.50}
deadline: 1h30m
"""


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of manifests/ in which the demo's inputs are collected, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("examples") / "manifests"
    shutil.copytree(MANIFESTS, folder, ignore=shutil.ignore_patterns("input", "results", "__pycache__"))
    subprocess.run([sys.executable, str(folder / "demo" / "collect.py")], check=True, capture_output=True, timeout=60)
    return folder


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def load(path: Path) -> Spec:
    return manifest.load(path, environ={"HOME": "/home/ada", "GPUOPS_OWNER": "ada"}, now=NOW)


# --- bad manifests -------------------------------------------------------------------------------------------------


def test_the_corpus_of_bad_manifests_is_there() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_a_bad_manifest_is_refused_with_line_key_and_sentence(path: Path) -> None:
    text = path.read_text()
    expected = re.findall(r"^# expect (\d+) (\S+): (.*)$", text, re.MULTILINE)
    assert expected

    with pytest.raises(ManifestError) as caught:
        load(path)

    line, key, sentence = expected[0]
    assert (caught.value.line, caught.value.key or "-") == (int(line), key)
    complaints = str(caught.value).splitlines()
    assert len(complaints) == len(expected), "each complaint once, and no other"
    for complaint, (line, key, sentence) in zip(complaints, expected, strict=True):
        where = f"{path}:{line}: " + ("" if key == "-" else f"{key}: ")
        assert complaint.startswith(where) and sentence in complaint, complaint
    assert caught.value.exit_code == 2


def test_a_manifest_that_is_not_there_is_a_manifest_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot read the manifest: No such file"):
        load(tmp_path / "gone.yaml")


def test_a_folder_is_not_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot read the manifest: Is a directory"):
        load(tmp_path)


def test_a_huge_manifest_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="larger than 1,000,000 bytes"):
        load(write(tmp_path, MINIMAL + "#" * 1_000_000))


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(MINIMAL.encode() + b"owner: \xff\xfe\n")
    with pytest.raises(ManifestError, match=":8: the manifest is not valid UTF-8"):
        load(path)


def test_control_characters_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=":8: not valid YAML: special characters are not allowed"):
        load(write(tmp_path, MINIMAL + "owner: a\x1b[2Jb\n"))


def test_an_unusable_owner_in_the_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="GPUOPS_OWNER is 'a b'"):
        manifest.load(write(tmp_path, MINIMAL), environ={"GPUOPS_OWNER": "a b"})


# --- good manifests ------------------------------------------------------------------------------------------------


def test_what_is_left_out_gets_a_sane_default(tmp_path: Path) -> None:
    spec = load(write(tmp_path, MINIMAL))
    assert (spec.deadline_s, spec.deadline_at, spec.hold_s, spec.setup_s) == (5400, 0, 900, 1800)
    assert spec.cap == Money(Decimal("1.50")) and spec.max_total_bytes == 2_000_000_000
    assert spec.checks.ports == (22,) and spec.checks.device == "A100" and spec.checks.on_failure == "down"
    assert spec.outputs.keep_last == 2 and spec.outputs.mirror and spec.teardown.when == "ended"
    assert spec.outputs.destination == str(tmp_path / "results")
    assert not spec.accept_first_use and spec.owner == "ada"


def test_without_an_owner_it_is_user_and_host(tmp_path: Path) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@+-]*", manifest.load(write(tmp_path, MINIMAL), environ={}).owner)


def test_a_deadline_may_be_a_time(tmp_path: Path) -> None:
    text = MINIMAL.replace("1h30m", "2026-12-01T07:00:00+01:00")
    spec = load(write(tmp_path, text))
    assert (spec.deadline_s, spec.deadline_at) == (0, 1_796_104_800)


def test_values_of_the_environment_stay_as_they_were_written(tmp_path: Path) -> None:
    text = (
        MINIMAL + 'env: {NORWAY: no, RATE: 1e-3, OCTAL: 0755, TIME: 1:30, EMPTY: "", PAD_TOKEN: "<p>", MAX_TOKENS: 5}\n'
    )
    spec = load(write(tmp_path, text))
    assert dict(spec.env) == {
        "NORWAY": "no", "RATE": "1e-3", "OCTAL": "0755", "TIME": "1:30", "EMPTY": "", "PAD_TOKEN": "<p>",
        "MAX_TOKENS": "5",
    }  # fmt: skip


def test_outputs_inside_a_transfer_are_fine_when_they_are_excluded(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    transfer = "transfers: [{source: code, to: /workspace, exclude: [/out]}]\n"
    assert load(write(tmp_path, MINIMAL + transfer)).transfers[0].exclude == ("/out",)


def test_home_and_relative_paths_become_absolute(tmp_path: Path) -> None:
    text = MINIMAL.replace("copy_to: results", "copy_to: ~/kept/../results")
    assert load(write(tmp_path, text)).outputs.destination == "/home/ada/results"


def test_a_small_number_of_aliases_is_accepted(tmp_path: Path) -> None:
    text = MINIMAL.replace("workdir: /workspace/code", "workdir: &code /workspace/code") + "env: {CODE: *code}\n"
    assert dict(load(write(tmp_path, text)).env) == {"CODE": "/workspace/code"}


def test_first_use_is_accepted_in_so_many_words_only(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL + "host_key: trust on first use, accepted\n")).accept_first_use


def test_a_deadline_in_the_past_is_refused_only_when_the_time_is_known(tmp_path: Path) -> None:
    text = MINIMAL.replace("1h30m", "2020-01-01T00:00:00Z")
    assert manifest.load(write(tmp_path, text), environ={}).deadline_at > 0


# --- examples and schema -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [p.name for p in sorted(MANIFESTS.glob("*.yaml"))])
def test_every_example_loads_and_survives_the_journal(examples: Path, name: str) -> None:
    spec = load(examples / name)
    assert codec.from_json(Spec, json.loads(codec.canonical(spec))) == spec


def test_the_demo_says_what_to_do_when_its_inputs_were_not_collected(examples: Path, tmp_path: Path) -> None:
    shutil.copytree(examples, tmp_path / "m", ignore=shutil.ignore_patterns("input"))
    with pytest.raises(ManifestError, match="demo/input does not exist"):
        load(tmp_path / "m" / "local-demo.yaml")


def test_the_reference_shows_every_key() -> None:
    shown = key_paths(yaml.load((MANIFESTS / "reference.yaml").read_text(), yaml.BaseLoader))  # `on` is no boolean
    assert schema_paths(manifest.export_schema()) <= shown


def test_the_schema_file_is_current() -> None:
    current = json.dumps(manifest.export_schema(), indent=2, ensure_ascii=False) + "\n"
    assert (MANIFESTS / "schema.json").read_text() == current, (
        "write it anew: python -c 'import json; from gpuops.manifest import export_schema; "
        "print(json.dumps(export_schema(), indent=2, ensure_ascii=False))' > manifests/schema.json"
    )


def test_every_key_has_a_sentence() -> None:
    schema = manifest.export_schema()
    for model in [schema, *schema["$defs"].values()]:
        for key, value in model.get("properties", {}).items():
            assert "description" in value or "$ref" in value, key


def key_paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return {path for item in value for path in key_paths(item, prefix)}
    if not isinstance(value, dict):
        return set()
    inner = {path for key, item in value.items() for path in key_paths(item, f"{prefix}{key}.")}
    return {f"{prefix}{key}" for key in value} | inner


def schema_paths(schema: dict[str, Any]) -> set[str]:
    def visit(node: dict[str, Any], prefix: str) -> set[str]:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        paths = visit(node["items"], prefix) if "items" in node else set()
        for key, inner in node.get("properties", {}).items():
            paths |= {f"{prefix}{key}"} | visit(inner, f"{prefix}{key}.")
        return paths

    return visit(schema, "")


# --- units and shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("20m", 1200), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400), ("250ms", 0.25)],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1h1h", "5 m", "1e3s", "-1s", "1m2h", "٣s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.duration_s(text)


@pytest.mark.parametrize("seconds", [0, 1, 59, 60, 5400, 86_400, 90_061])
def test_a_written_duration_reads_back(seconds: int) -> None:
    assert units.duration_s(units.duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("512 MiB", 512 * 2**20), ("1.5KB", 1500), ("100B", 100)]
)
def test_sizes(text: str, size: int) -> None:
    assert units.size_bytes(text) == size


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "wandb_api_key", "AWS_SECRET_ACCESS_KEY", "DbPassword", "DB_PWD", "SSH_KEY"]
)
def test_names_of_secrets(name: str) -> None:
    assert shapes.secret_name(name)


@pytest.mark.parametrize(
    "name", ["MAX_TOKENS", "TOKENIZERS_PARALLELISM", "PAD_TOKEN", "SORT_KEY", "KEYBOARD", "PWD", "PASS_RATE", "MONKEY"]
)
def test_names_that_are_none(name: str) -> None:
    assert not shapes.secret_name(name)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0.001",
        "/data/models/llama-3-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "a" * 64,
        "3f" * 32,
        "expandable_segments:True",
    ],
)
def test_values_that_are_none(value: str) -> None:
    assert not shapes.secret_value(value)


# --- per provider --------------------------------------------------------------------------------------------------


def test_the_block_of_the_chosen_provider_holds_instead_of_what_stands_above(tmp_path: Path) -> None:
    more = "on:\n  local:\n    resources: {count: 2}\n    deadline: 2h\n  aws:\n    resources: {device: p5.48xlarge}\n"
    spec = load(write(tmp_path, MINIMAL + more))
    assert (spec.need.device, spec.need.count, spec.deadline_s) == ("A100", 2, 7200)
    moved = load(write(tmp_path, (MINIMAL + more).replace("provider: local", "provider: aws")))
    assert (moved.need.device, moved.need.count, moved.deadline_s) == ("p5.48xlarge", 1, 5400)


def test_caches_go_where_they_should_and_the_token_stays(tmp_path: Path) -> None:
    spec = load(write(tmp_path, MINIMAL + "caches: /data/caches\noffline: true\nenv: {HF_XET_CACHE: /tmp/xet}\n"))
    env = dict(spec.env)
    assert env["HF_HUB_CACHE"] == "/data/caches/hub" and env["HF_DATASETS_CACHE"] == "/data/caches/datasets"
    assert env["HF_XET_CACHE"] == "/tmp/xet", "what the manifest says itself wins"
    assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == "1" and "HF_HOME" not in env
