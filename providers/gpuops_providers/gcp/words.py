"""The vendor's words: what its states mean, which words may be sent, and what its accelerators are.

Source: the discovery document compute.v1 (rev. 20261106), whose enumerations a test compares with `SENT`, and
cloud.google.com/compute/docs/gpus.
"""

from __future__ import annotations

from gpuops.values import ObservedState

STATES: dict[str, ObservedState] = {
    "PENDING": "starting",
    "PROVISIONING": "starting",
    "STAGING": "starting",
    "RUNNING": "running",
    "REPAIRING": "running",
    "PENDING_STOP": "ending",
    "STOPPING": "ending",
    "SUSPENDING": "ending",
    "DEPROVISIONING": "ending",
    "STOPPED": "stopped",
    "TERMINATED": "stopped",
    "SUSPENDED": "stopped",
}
"""Of an instance. TERMINATED means stopped, not gone: disks bill on. Any other word is unknown, which counts as billing."""

BILLS: dict[ObservedState, tuple[str, ...]] = {"stopped": ("storage",)}
"""What a state bills for, where it is not computing; a suspended machine's memory counts as storage."""

SENT: dict[str, tuple[str, tuple[str, ...]]] = {
    "provisioningModel": ("Scheduling", ("STANDARD", "SPOT")),
    "instanceTerminationAction": ("Scheduling", ("DELETE",)),
    "onHostMaintenance": ("Scheduling", ("TERMINATE",)),
    "mode": ("AttachedDisk", ("READ_WRITE",)),
    "type": ("AccessConfig", ("ONE_TO_ONE_NAT",)),
}
"""Enumerated field → its schema and the words that we send. The client checks none of them."""

DEVICES: dict[str, tuple[str, float]] = {
    "nvidia-b200": ("NVIDIA B200", 180),
    "nvidia-h200-141gb": ("NVIDIA H200", 141),
    "nvidia-h100-80gb": ("NVIDIA H100 80GB HBM3", 80),
    "nvidia-h100-mega-80gb": ("NVIDIA H100 80GB HBM3", 80),
    "nvidia-a100-80gb": ("NVIDIA A100-SXM4-80GB", 80),
    "nvidia-tesla-a100": ("NVIDIA A100-SXM4-40GB", 40),
    "nvidia-l4": ("NVIDIA L4", 24),
    "nvidia-rtx-pro-6000": ("NVIDIA RTX PRO 6000", 96),
    "nvidia-tesla-t4": ("Tesla T4", 16),
    "nvidia-tesla-v100": ("Tesla V100-SXM2-16GB", 16),
    "nvidia-tesla-p100": ("Tesla P100-PCIE-16GB", 16),
    "nvidia-tesla-p4": ("Tesla P4", 8),
}
"""Accelerator type → what nvidia-smi calls it, and its memory in GB; not every name is confirmed."""

INCLUDED_SERIES = ("a2", "a3", "a4", "g2", "g4")
"""Machine series whose types come with accelerators."""

ATTACHED = ("nvidia-tesla-t4", "nvidia-tesla-v100", "nvidia-tesla-p100", "nvidia-tesla-p4")
"""Accelerators that are attached to N1 machines."""

N1_FOR: dict[int, tuple[str, ...]] = {
    1: ("n1-standard-4", "n1-standard-8"),
    2: ("n1-standard-8", "n1-standard-16"),
    4: ("n1-standard-16", "n1-standard-32"),
}
"""Number of attached accelerators → the machines that are offered with them."""

HYPERDISK_ONLY = ("a4", "g4", "a3-ultragpu")
"""Series that take no persistent disk of the older kind; not confirmed on a real account."""


def boot_disk_type(machine_type: str) -> str:
    """The usual boot disk of a machine."""
    return "hyperdisk-balanced" if machine_type.startswith(HYPERDISK_ONLY) else "pd-balanced"


def sent(field: str, word: str) -> str:
    """`word`, once the vendor's own list has it; a typing error here would go out unchecked."""
    if word not in SENT[field][1]:
        raise ValueError(f"{field} is never {word!r}")
    return word
