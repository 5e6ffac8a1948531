"""A training script as one finds them: a small network learns to add, by argparse and torch alone. It knows nothing of gpuops."""

import argparse
import os
import time

import torch
from torch import nn


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.rand(size, 8, generator=generator)
    return numbers, numbers.sum(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps, to make a short run longer")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    os.makedirs(args.out, exist_ok=True)

    for step in range(1, args.steps + 1):
        inputs, targets = (t.to(device) for t in batch(64, generator))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step % args.save_every == 0:
            torch.save({"step": step, "model": model.state_dict()}, os.path.join(args.out, "ckpt.pt"))
        time.sleep(args.pause)


if __name__ == "__main__":
    main()
