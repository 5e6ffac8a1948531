"""gpuops rents GPU machines for training runs, and proves that the bill stops and no checkpoint is lost."""

__version__ = "0.1.0"
