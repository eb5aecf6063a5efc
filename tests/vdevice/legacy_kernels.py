"""Kernels as users have them, and records of them: 1-D to 3-D, static and dynamic shared memory, odd blocks."""

from __future__ import annotations

import json
from typing import Any

from rammer_legacy_kernels.record import SCHEMA, Record, parse_record

MATMUL = """\
#include <cuda_runtime.h>
#define TILE 16
/* C = A B, every block a tile */
__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }

extern "C" __global__ void __launch_bounds__(TILE * TILE)
matmul(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int M, int N, int K) {
  __shared__ float As[TILE][TILE + 1], Bs[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y;
  const int col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.0f;
  for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
    const int k = t * TILE;
    As[threadIdx.y][threadIdx.x] = row < M && k + threadIdx.x < K ? A[row * K + k + threadIdx.x] : 0.0f;
    Bs[threadIdx.y][threadIdx.x] = col < N && k + threadIdx.y < K ? __ldg(&B[(k + threadIdx.y) * N + col]) : 0.0f;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < TILE; ++i) acc = fused(As[threadIdx.y][i], Bs[i][threadIdx.x], acc);
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = acc;
}
"""

# A row per block, 40 threads: no whole warps, and its syncs must not wait for the other threads of a vEU.
SOFTMAX = """\
__global__ void softmax(const float *x, float *y, int n) {
  extern __shared__ float s[];
  __shared__ float total;
  const float *row = x + blockIdx.x * n;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);
  s[threadIdx.x] = m;
  __syncthreads();
  for (int k = 0; k < blockDim.x; ++k) m = max(m, s[k]);
  __syncthreads();
  float e = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) e += __expf(row[i] - m);
  s[threadIdx.x] = e;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int k = 0; k < (int)blockDim.x; ++k) sum += s[k];
    total = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __expf(row[i] - m) / total;
}
"""

# Three dimensions of both, no shared memory, threads that leave early.
TANH = """\
static const float ONE = 1.0f;
__global__ void tanh3(float *y, const float *x) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y * blockDim.y + threadIdx.y;
  int a = blockIdx.z * blockDim.z + threadIdx.z;
  if (b >= 5) return;
  int i = (a * 5 + b) * 32 + c;
  y[i] = ONE * tanhf(x[i]);
}
"""

REVERSE = """\
// rows backwards, three threads to a row
__global__ void reverse(float *y, const float *x) {
  __shared__ float s[7][3];
  s[threadIdx.y][threadIdx.x] = x[(blockIdx.x * 7 + threadIdx.y) * 3 + threadIdx.x];
  __syncthreads();
  y[(blockIdx.x * 7 + threadIdx.y) * 3 + threadIdx.x] = s[threadIdx.y][2 - threadIdx.x];
}
"""


def tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


def matmul_data(m: int = 40, n: int = 24, k: int = 50, **changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": "matmul16",
        "operator": {"kind": "matmul"},
        "inputs": [tensor(m, k), tensor(k, n)],
        "grid": [-(-n // 16), -(-m // 16)],
        "block": [16, 16],
        "arguments": ["input0", "input1", "output0", m, n, k],
        "source": MATMUL,
        **changes,
    }


def softmax_data(rows: int = 40, n: int = 24, **changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": "softmax40",
        "operator": {"kind": "softmax", "attrs": {"axis": 1}},
        "inputs": [tensor(rows, n)],
        "grid": [rows],
        "block": [40],
        "dynamic_bytes": 160,
        "arguments": ["input0", "output0", n],
        "source": SOFTMAX,
        **changes,
    }


def tanh_data(**changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": "tanh3",
        "operator": {"kind": "tanh"},
        "inputs": [tensor(4, 5, 32)],
        "grid": [4, 2, 2],
        "block": [8, 3, 2],
        "tiles": [
            {"axis": 0, "grid": "z", "step": 2},
            {"axis": 1, "grid": "y", "step": 3},
            {"axis": 2, "grid": "x", "step": 8},
        ],
        "source": TANH,
        **changes,
    }


def reverse_data(**changes: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": "reverse",
        "operator": {"kind": "slice", "attrs": {"starts": [0, 2], "steps": [1, -1], "shape": [21, 3]}},
        "inputs": [tensor(21, 3)],
        "grid": [3],
        "block": [3, 7],
        "source": REVERSE,
        **changes,
    }


def record(data: dict[str, Any]) -> Record:
    return parse_record(json.dumps(data))
