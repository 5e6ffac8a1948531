"""A character model in the manner of Bengio (2003): embeddings of the last characters, one hidden layer, softmax."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]
EMBEDDING = 12
KEPT = 0.9


class Batches:
    """Windows of the text in an order that is shuffled anew each epoch; epoch and position are the cursor."""

    def __init__(self, text: bytes, batch: int, context: int, seed: int) -> None:
        raw = np.frombuffer(text, np.uint8)
        self.alphabet, codes = np.unique(raw, return_inverse=True)
        self.codes = codes.astype(np.uint8)
        self.batch, self.context, self.seed = batch, context, seed
        self.count = len(raw) - context
        if self.count < batch:
            raise OSError(f"the text is too short: {len(raw)} bytes")
        self.go_to({"epoch": 0, "position": 0})

    def cursor(self) -> dict[str, int]:
        """Where the next batch begins."""
        return {"epoch": self.epoch, "position": self.position}

    def go_to(self, cursor: dict[str, int]) -> None:
        """Continue at a cursor: the order follows from seed and epoch."""
        self.epoch, self.position = cursor["epoch"], cursor["position"]
        self.order = np.random.default_rng([self.seed, self.epoch]).permutation(self.count)

    def take(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The next batch: (batch, context) inputs and the characters that follow."""
        if self.position + self.batch > self.count:
            self.go_to({"epoch": self.epoch + 1, "position": 0})
        starts = self.order[self.position : self.position + self.batch]
        self.position += self.batch
        return self.codes[starts[:, None] + np.arange(self.context)], self.codes[starts + self.context]


class Model:
    """Weights, and the loss with its gradients, derived by hand."""

    def __init__(self, alphabet: int, context: int, hidden: int, rng: np.random.Generator) -> None:
        def normal(rows: int, columns: int, scale: float) -> Array:
            return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

        inputs = context * EMBEDDING
        self.weights: Weights = {
            "embedding": normal(alphabet, EMBEDDING, 0.5),
            "in": normal(inputs, hidden, inputs**-0.5),
            "in_bias": np.zeros(hidden, np.float32),
            "out": normal(hidden, alphabet, 0.1 * hidden**-0.5),
            "out_bias": np.zeros(alphabet, np.float32),
        }

    def loss_and_gradients(
        self, inputs: npt.NDArray[np.uint8], targets: npt.NDArray[np.uint8], rng: np.random.Generator
    ) -> tuple[float, Weights]:
        """Mean cross entropy in nats per character; dropout draws from `rng`."""
        w, rows = self.weights, np.arange(len(targets))
        seen = w["embedding"][inputs].reshape(len(targets), -1)
        active = np.tanh(seen @ w["in"] + w["in_bias"])
        mask = (rng.random(active.shape, np.float32) < KEPT).astype(np.float32) / np.float32(KEPT)
        dropped = active * mask
        scores = dropped @ w["out"] + w["out_bias"]
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        loss = float(-np.log(np.maximum(shares[rows, targets], 1e-30)).mean())

        shares[rows, targets] -= 1
        shares /= np.float32(len(targets))
        d_active = (shares @ w["out"].T) * mask * (1 - active * active)
        d_embedding = np.zeros_like(w["embedding"])
        np.add.at(d_embedding, inputs.ravel(), (d_active @ w["in"].T).reshape(-1, EMBEDDING))
        return loss, {
            "embedding": d_embedding,
            "in": seen.T @ d_active,
            "in_bias": d_active.sum(axis=0),
            "out": dropped.T @ shares,
            "out_bias": shares.sum(axis=0),
        }


class Adam:
    """Kingma and Ba (2015), with the usual constants."""

    def __init__(self, weights: Weights) -> None:
        self.step = 0
        self.first = {name: np.zeros_like(value) for name, value in weights.items()}
        self.second = {name: np.zeros_like(value) for name, value in weights.items()}

    def apply(self, weights: Weights, gradients: Weights, rate: float) -> None:
        """Move the weights in place."""
        self.step += 1
        scale = rate * (1 - 0.999**self.step) ** 0.5 / (1 - 0.9**self.step)
        for name, gradient in gradients.items():
            first, second = self.first[name], self.second[name]
            first += np.float32(0.1) * (gradient - first)
            second += np.float32(0.001) * (gradient * gradient - second)
            weights[name] -= np.float32(scale) * first / (np.sqrt(second) + np.float32(1e-8))

    def arrays(self) -> Weights:
        """Both moments under names of their own."""
        return {f"first.{k}": v for k, v in self.first.items()} | {f"second.{k}": v for k, v in self.second.items()}

    def load(self, arrays: Weights, step: int) -> None:
        """Take over what `arrays` gave."""
        self.step = step
        self.first = {k.removeprefix("first."): v for k, v in arrays.items() if k.startswith("first.")}
        self.second = {k.removeprefix("second."): v for k, v in arrays.items() if k.startswith("second.")}
