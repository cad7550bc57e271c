"""Fused kernels; the definition that each computes is named in its docstring."""
