// Attention of a few query rows. One block of threads per request, head and row; its warps share
// the keys out, FOUR at a time, a lane holds D / 32 numbers of each. Every warp keeps a running
// maximum, sum and mixture, and the block joins them. T, D, MASK (0 none, 1 causal, 2 array) and
// the arrays' names, shapes and strides come from the wrapper. Out is [R, M, H, D].
constexpr int WARPS = 16, FOUR = 4, E = D / 32;
__shared__ float tops[WARPS], sums[WARPS], parts[WARPS][D];
const int heads = q_shape[1], rows = q_shape[2], all_keys = k_shape[2];
const int row = blockIdx.x % rows, head = blockIdx.x / rows % heads;
const int request = blockIdx.x / (rows * heads);
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int kv_head = head / (heads / k_shape[1]);
const T* own = q + request * q_strides[0] + head * q_strides[1] + row * q_strides[2] + lane * E;
const T* keys = k + request * k_strides[0] + kv_head * k_strides[1] + lane * E;
const T* values = v + request * v_strides[0] + kv_head * v_strides[1] + lane * E;
const bool* allowed = mask;
if (MASK == 2) {
  allowed += (mask_shape[0] > 1 ? request * mask_strides[0] : 0) + row * mask_strides[2];
}
const int count = MASK == 1 ? all_keys - rows + row + 1 : all_keys;
float query[E], mixed[E], top = -1e30f, sum = 0.0f;
for (int e = 0; e < E; ++e) {
  query[e] = static_cast<float>(own[e]) * scale[0];
  mixed[e] = 0.0f;
}
for (int first = warp * FOUR; first < count; first += WARPS * FOUR) {
  float score[FOUR], value[FOUR][E];
  bool seen[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    const int at = first + i;
    seen[i] = at < count && (MASK != 2 || allowed[at * mask_strides[3]]);
    score[i] = 0.0f;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      value[i][e] = seen[i] ? static_cast<float>(values[at * v_strides[2] + e]) : 0.0f;
      score[i] += seen[i] ? query[e] * static_cast<float>(keys[at * k_strides[2] + e]) : 0.0f;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < FOUR; ++i) score[i] += __shfl_xor_sync(0xffffffffu, score[i], step);
  }
  float next = top;
#pragma unroll
  for (int i = 0; i < FOUR; ++i) next = seen[i] ? fmaxf(next, score[i]) : next;
  const float fade = __expf(top - next);
  sum *= fade;
#pragma unroll
  for (int e = 0; e < E; ++e) mixed[e] *= fade;
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    const float weight = seen[i] ? __expf(score[i] - next) : 0.0f;
    sum += weight;
#pragma unroll
    for (int e = 0; e < E; ++e) mixed[e] += weight * value[i][e];
  }
  top = next;
}
if (lane == 0) {
  tops[warp] = top;
  sums[warp] = sum;
}
for (int e = 0; e < E; ++e) parts[warp][lane * E + e] = mixed[e];
__syncthreads();
for (int d = threadIdx.x; d < D; d += blockDim.x) {
  float best = tops[0], total = 0.0f, result = 0.0f;
  for (int w = 1; w < WARPS; ++w) best = fmaxf(best, tops[w]);
  for (int w = 0; w < WARPS; ++w) {
    const float share = __expf(tops[w] - best);
    total += share * sums[w];
    result += share * parts[w][d];
  }
  const long place = (long(request) * rows + row) * heads + head;
  out[place * D + d] = static_cast<T>(result / total);
}
