"""For adapter authors: a simulated world and the conformance suite. Nothing in gpuops imports it."""
