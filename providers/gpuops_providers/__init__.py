"""The adapters that come with gpuops, one module or small package per cloud."""
