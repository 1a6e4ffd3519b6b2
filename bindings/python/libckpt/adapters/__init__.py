# SPDX-License-Identifier: Apache-2.0
"""
What is special about training with PyTorch: wrappers of modules (DDP, FSDP, torch.compile), tensors
that are spread over ranks or wrap others, stages of a pipeline, buffers of which each rank has its
own, loaders, and optimizers.
"""
