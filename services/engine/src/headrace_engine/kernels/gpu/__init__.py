"""Triton kernels of the CUDA executor: one kernel a file, each with a twin in ``reference``."""
