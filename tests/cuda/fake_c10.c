/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is named like PyTorch's for CUDA, and linked with the fake runtime of CUDA 12 as that one is. */
int cudaGetDeviceCount(int *count);

__attribute__((visibility("default"))) int c10_cuda_device_count(void);

int c10_cuda_device_count(void)
{
	int count = 0;

	return cudaGetDeviceCount(&count) == 0 ? count : 0;
}
