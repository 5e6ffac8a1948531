"""The demo training: a small character model on real text, with numpy alone and on one thread.

It shows what a program that follows the training contract does:
- one heartbeat per update, in $GPUOPS_OUTPUT_DIR/heartbeat.jsonl;
- complete generations only: published by one rename, hash list last (`generation.py`);
- SIGTERM: finish this update, save, exit 0; the same before the time in $GPUOPS_DEADLINE_FILE;
- $GPUOPS_RESUME: go on from a generation as if nothing had happened, bit for bit;
- $GPUOPS_MAX_UPDATES and $GPUOPS_MAX_TOKENS: never more than that.
"""

import os

# Before numpy is imported: its own threads slow a small shared machine down many times over, and change the last bits.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

# ruff: noqa: E402
import argparse
import hashlib
import json
import signal
import sys
import time
from collections import deque
from pathlib import Path

STOP: list[str] = []


def _on_signal(number: int, _frame: object) -> None:
    STOP.append(signal.Signals(number).name)


# Before the slow import of numpy, so that a stop that comes at once is not a crash.
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)

import generation
import numpy as np
from beat import Heartbeat
from model import Adam, Batches, Model


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../input/corpus.txt", help="the text")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=400, help="publish a generation after this many updates")
    parser.add_argument("--keep", type=int, default=5, help="generations to keep here; never fewer than two")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--context", type=int, default=16, help="characters that the model sees")
    parser.add_argument("--hidden", type=int, default=224)
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate after warm-up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", default=os.environ.get("GPUOPS_RESUME", ""), help="generation to go on from")
    return parser.parse_args()


class Limits:
    """Why to stop before all updates are made: a signal, the deadline, or a hard limit."""

    def __init__(self) -> None:
        self.updates = int(os.environ.get("GPUOPS_MAX_UPDATES") or 0)
        self.tokens = int(os.environ.get("GPUOPS_MAX_TOKENS") or 0)
        self.file = os.environ.get("GPUOPS_DEADLINE_FILE", "")
        self.deadline = 0.0
        self._looked_at = -1e9

    def reached(self, step: int, tokens: int, tokens_per_update: int, save_s: float) -> str:
        """The reason to stop now, or nothing. `save_s`: what the last save took."""
        if STOP:
            return STOP[0]
        if self.updates and step >= self.updates:
            return "max_updates"
        if self.tokens and tokens + tokens_per_update > self.tokens:
            return "max_tokens"
        if time.monotonic() - self._looked_at >= 1:
            self._looked_at = time.monotonic()
            self.deadline = self._read() or self.deadline
        return "deadline" if self.deadline and time.time() >= self.deadline - 2 - 2 * save_s else ""

    def _read(self) -> float:
        """The deadline file may change and may be unreadable for a moment: then the last good value counts."""
        try:
            text = Path(self.file).read_text() if self.file else ""
            value = json.loads(text)["deadline"] if text.lstrip().startswith("{") else text.split()[0]
            return float(value)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return 0.0


class Training:
    """Everything that a generation holds: weights, optimizer, random state, data cursor, counters, configuration."""

    def __init__(self, options: argparse.Namespace) -> None:
        text = Path(options.data).read_bytes()
        self.config = {
            "data_sha256": hashlib.sha256(text).hexdigest(),
            **{name: getattr(options, name) for name in ("batch", "context", "hidden", "rate", "seed")},
        }
        self.config_hash = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()
        self.rng = np.random.default_rng(options.seed)
        self.batches = Batches(text, options.batch, options.context, options.seed)
        self.model = Model(len(self.batches.alphabet), options.context, options.hidden, self.rng)
        self.adam = Adam(self.model.weights)
        self.step = self.tokens = 0
        self.recent: deque[float] = deque(maxlen=50)

    def update(self) -> tuple[float, float]:
        """One update; returns (loss, learning rate)."""
        self.step += 1
        rate = self.config["rate"] * min(1.0, self.step / 50)
        inputs, targets = self.batches.take()
        loss, gradients = self.model.loss_and_gradients(inputs, targets, self.rng)
        self.adam.apply(self.model.weights, gradients, rate)
        self.tokens += len(targets)
        self.recent.append(loss)
        return loss, rate

    def save(self, output: Path, keep: int) -> dict[str, object]:
        """Publish a generation; returns what the heartbeat says about it."""
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "recent": list(self.recent),
            "cursor": self.batches.cursor(),
            "rng": self.rng.bit_generator.state,
            "adam_step": self.adam.step,
            "config": self.config,
            "config_sha256": self.config_hash,
        }
        metric = sum(self.recent) / len(self.recent)
        arrays = {"weights.npz": self.model.weights, "optimizer.npz": self.adam.arrays()}
        path = generation.publish(output, self.step, arrays, state, metric)
        generation.prune(output, keep)
        digest = hashlib.sha256((path / "MANIFEST.json").read_bytes()).hexdigest()
        return {"step": self.step, "path": str(path), "sha256": digest, "t": round(time.time(), 3)}

    def load(self, path: Path) -> None:
        """Go on from a generation; refuses one that is damaged or belongs to another configuration."""
        arrays, state = generation.read(path, ("weights.npz", "optimizer.npz"))
        if state["config_sha256"] != self.config_hash:
            differing = sorted(k for k in self.config if self.config[k] != state["config"].get(k))
            raise generation.UnusableError(f"{path} was made with another configuration ({', '.join(differing)})")
        self.model.weights = arrays["weights.npz"]
        self.adam.load(arrays["optimizer.npz"], state["adam_step"])
        self.rng.bit_generator.state = state["rng"]
        self.batches.go_to(state["cursor"])
        self.step, self.tokens = state["step"], state["tokens"]
        self.recent.extend(state["recent"])


def run(training: Training, options: argparse.Namespace, beat: Heartbeat, output: Path) -> str:
    """Update until everything is done or something says stop; returns that reason, empty when all updates were made."""
    limits, save_s, saved_at = Limits(), 0.5, training.step
    began, began_tokens = time.monotonic(), training.tokens
    while True:
        reason = limits.reached(training.step, training.tokens, options.batch, save_s)
        finished = training.step >= options.updates
        if saved_at != training.step and (reason or finished or training.step % options.save_every == 0):
            beat(step=training.step, tokens=training.tokens, state="checkpointing")
            started = time.monotonic()
            checkpoint = training.save(output, options.keep)
            save_s, saved_at = time.monotonic() - started, training.step
            loss = sum(training.recent) / len(training.recent)
            beat(step=training.step, tokens=training.tokens, state="training", loss=round(loss, 5), ckpt=checkpoint)
            print(f"published {os.path.basename(str(checkpoint['path']))}, mean loss {loss:.3f}", flush=True)
        if finished or reason:
            return "" if finished else reason
        loss, rate = training.update()
        speed = (training.tokens - began_tokens) / max(1e-6, time.monotonic() - began)
        beat(
            step=training.step,
            tokens=training.tokens,
            state="training",
            loss=round(loss, 5),
            lr=rate,
            tps=round(speed, 1),
        )
        if training.step % 50 == 0:
            print(f"update {training.step}/{options.updates}  loss {loss:.3f}  {speed:,.0f} characters/s", flush=True)
        if not np.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at update {training.step}")


def main() -> int:
    """Train; returns the exit code: 0 also after a wanted stop, 1 when it failed."""
    options = arguments()
    output = Path(os.environ.get("GPUOPS_OUTPUT_DIR", "out"))
    output.mkdir(parents=True, exist_ok=True)
    beat = Heartbeat(str(output))
    beat(step=0, tokens=0, state="starting")
    step = tokens = 0
    try:
        generation.clear_unfinished(output)
        training = Training(options)
        if options.resume:
            training.load(Path(options.resume))
            print(f"resumed from {options.resume} at update {training.step}", flush=True)
        reason = run(training, options, beat, output)
        step, tokens = training.step, training.tokens
    except (OSError, generation.UnusableError, FloatingPointError) as error:
        beat(step=step, tokens=tokens, state="failed", exit=1)
        print(f"training failed: {error}", file=sys.stderr, flush=True)
        return 1
    if reason:
        beat(step=step, tokens=tokens, state="training", stop=reason)
        print(f"stopped by {reason} after update {step}; everything is saved", flush=True)
    else:
        beat(step=step, tokens=tokens, state="done", exit=0)
        print(f"all {step} updates are done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
