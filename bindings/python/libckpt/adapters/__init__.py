# SPDX-License-Identifier: Apache-2.0
"""
Support for parts of PyTorch: wrappers of modules (DDP, FSDP, torch.compile), tensors that are
distributed over ranks or wrap others, stages of a pipeline, buffers that differ by rank, loaders,
and optimizers.
"""
