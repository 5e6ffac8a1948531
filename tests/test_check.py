"""`check` says in plain sentences what a manifest means: one screen, and nothing of it that the manifest does not say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.check import app, explain
from gpuops.errors import ManifestError
from gpuops.manifest import load
from gpuops.spec import Spec, Teardown

MANIFESTS = Path(__file__).parent.parent / "manifests"


@pytest.fixture
def reference() -> Spec:
    return load(MANIFESTS / "reference.yaml")


def test_the_reference_is_explained_on_one_screen_without_words_that_need_explaining() -> None:
    done = CliRunner().invoke(app, [str(MANIFESTS / "reference.yaml")])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 36 and max(map(len, done.output.splitlines())) <= 120
    for jargon in ("generation", "seal", "mirror", "layer", "spec", "teardown", "None", "{"):
        assert jargon not in done.output, jargon


def test_every_part_says_what_the_manifest_says(reference: Spec) -> None:
    said = dict(explain(reference))
    assert "1 x A100 of at least 80 GB from local in here: the offer local.sim-a100-80" in said["rents"]
    assert "the volume vol-datasets, which exists already, is attached at /data" in said["rents"]
    assert "driver 535.104 or later, 1 GB free" in said["accepts"] and "goes down at once" in said["accepts"]
    assert "without /input, *.md" in said["sends"] and "what git ignores" in said["sends"]
    assert (
        said["runs"].startswith("python3 train.py in /workspace/code, for 8h at most")
        and "WANDB_API_KEY" in said["runs"]
    )
    assert "the newest 2 and the one with the lowest loss stay" in said["keeps"]
    assert "6h after your approval" in said["ends"] and "stays up 20m" in said["ends"] and "15m later" in said["ends"]
    assert said["costs"].startswith("at most 10 USD")
    assert "offers above 2.00 USD per hour" in said["refuses"] and "2.0 GB" in said["refuses"]
    assert "if lost" not in said and "identity" not in said["refuses"], "first use is accepted in the reference"


def test_what_happens_before_training_is_explained(reference: Spec) -> None:
    said = dict(explain(reference))
    assert "the commit HEAD of " in said["sends"] and "with its uncommitted changes as a patch" in said["sends"]
    assert "fetched by the host from https://data.example.org/sets/train.bin, sha256 9f86d081884c…" in said["data"]
    assert "/workspace/data/tokens.bin, made on the host by python3 tokenize.py" in said["data"]
    assert "the lock /opt/locks/training.txt and what `python3 -m compileall -q .` makes" in said["trains in"]
    assert "must show python 3, torch 2.13, CUDA 13.0, 1 devices" in said["trains in"]
    assert "for 3 updates, at most 10m" in said["tries first"] and "Nothing is installed" in said["accepts"]


def warnings(manifest: Path) -> list[str]:
    found = json.loads(CliRunner().invoke(app, [str(manifest), "--json"]).stdout)["warnings"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("provider: local", "provider: nowhere", "there is no provider 'nowhere' here"),
        ("workdir: /workspace/code", "workdir: /elsewhere", "nothing is sent to /elsewhere, where training starts"),
        ("workdir: /workspace/code", "workdir: /workspace/code/deep", "has no such folder"),
        ("[python3, train.py]", "[python3, tarin.py]", "names tarin.py, which is not in "),
    ],
)
def test_what_looks_wrong_in_a_good_manifest_is_a_warning(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    good = """\
name: small
provider: local
resources: {device: A100}
transfers: [{source: code, to: /workspace/code}]
train: {argv: [python3, train.py], workdir: /workspace/code}
outputs: {directory: /workspace/out, copy_to: results}
budget: {cap: 5}
deadline: 1h
"""
    assert old in good
    (tmp_path / "m.yaml").write_text(good)
    assert warnings(tmp_path / "m.yaml") == []
    (tmp_path / "m.yaml").write_text(good.replace(old, new))
    found = warnings(tmp_path / "m.yaml")
    assert len(found) == 1 and said in found[0]
    assert "WARNING" in CliRunner().invoke(app, [str(tmp_path / "m.yaml")]).stdout


def test_other_words_for_other_choices(reference: Spec) -> None:
    other = replace(
        reference, train=replace(reference.train, resume=2), teardown=Teardown("manual"), accept_first_use=False,
        checks=replace(reference.checks, on_failure="hold"), transfers=(), deadline_at=2e9, deadline_s=0,
        outputs=replace(reference.outputs, mirror=False),
    )  # fmt: skip
    said = dict(explain(other))
    assert "replaced up to 2 time(s)" in said["if lost"]
    assert said["ends"].startswith("only when you say `gpuops down`, or in time for the deadline on 2033-")
    assert "held 30m for a look, which costs money" in said["accepts"]
    assert said["sends"] == "nothing"
    assert "when training has ended" in said["keeps"]
    assert "identity (host key)" in said["refuses"]


def test_json_has_the_sentences_and_a_complaint_names_file_line_and_key(tmp_path: Path) -> None:
    document = json.loads(CliRunner().invoke(app, [str(MANIFESTS / "reference.yaml"), "--json"]).stdout)
    assert document["means"]["costs"].startswith("at most 10 USD") and document["spec"]["name"] == "reference"
    (tmp_path / "m.yaml").write_text((MANIFESTS / "reference.yaml").read_text().replace("cap: 10.00", "cap: plenty"))
    error = CliRunner().invoke(app, [str(tmp_path / "m.yaml")]).exception
    assert isinstance(error, ManifestError) and error.key == "budget.cap" and error.line > 0
