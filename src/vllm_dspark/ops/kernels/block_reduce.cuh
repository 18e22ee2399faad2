// Reductions over a block of up to 1024 threads; every thread gets the result.
__device__ inline float block_sum(float x, float* shared) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ inline float block_max(float x, float* shared) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -1e30f;
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Eight neighbouring bfloat16 numbers as float.
__device__ inline void load8(const void* base, long index, float* out) {
  const uint4 packed = reinterpret_cast<const uint4*>(base)[index / 8];
  const unsigned int words[4] = {packed.x, packed.y, packed.z, packed.w};
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ inline unsigned int to_bfloat16(float x) {  // round to nearest even; x is finite
  const unsigned int bits = __float_as_uint(x);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

__device__ inline void store8(void* base, long index, const float* values) {
  unsigned int words[4];
  for (int i = 0; i < 4; ++i)
    words[i] = to_bfloat16(values[2 * i]) | (to_bfloat16(values[2 * i + 1]) << 16);
  reinterpret_cast<uint4*>(base)[index / 8] = make_uint4(words[0], words[1], words[2], words[3]);
}
