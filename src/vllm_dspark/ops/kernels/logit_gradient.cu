// One block of threads per slot; V (a multiple of 8) and the array names come from the wrapper.
// Pass 1: largest logit and sum of exponentials. Pass 2: sum |p - q| and sum sign(p - q) p.
// Pass 3: the gradient. The second and third reading mostly hit the L2 cache.
__shared__ float shared[32];
const long row = blockIdx.x;
const float share = shares[row];
const float ce_weight = weights[0], l1_weight = weights[1];
const long base = row * V;
const int stride = blockDim.x * 8;
float z[8], t[8];
if (share == 0.0f) {
  for (int i = 0; i < 8; ++i) z[i] = 0.0f;
  for (int at = threadIdx.x * 8; at < V; at += stride) store8(grad, base + at, z);
  if (threadIdx.x == 0) ce[row] = l1[row] = 0.0f;
  return;
}
float top_z = -1e30f, top_t = -1e30f, sum_z = 0.0f, sum_t = 0.0f;
for (int at = threadIdx.x * 8; at < V; at += stride) {
  load8(logits, base + at, z);
  load8(target_logits, base + at, t);
  float new_z = top_z, new_t = top_t;
  for (int i = 0; i < 8; ++i) {
    new_z = fmaxf(new_z, z[i]);
    new_t = fmaxf(new_t, t[i]);
  }
  sum_z *= __expf(top_z - new_z);
  sum_t *= __expf(top_t - new_t);
  for (int i = 0; i < 8; ++i) {
    sum_z += __expf(z[i] - new_z);
    sum_t += __expf(t[i] - new_t);
  }
  top_z = new_z;
  top_t = new_t;
}
const float max_z = block_max(top_z, shared), max_t = block_max(top_t, shared);
const float total_z = block_sum(sum_z * __expf(top_z - max_z), shared);
const float total_t = block_sum(sum_t * __expf(top_t - max_t), shared);
const float scale_z = 1.0f / total_z, scale_t = 1.0f / total_t;
float distance = 0.0f, tilt = 0.0f;
for (int at = threadIdx.x * 8; at < V; at += stride) {
  load8(logits, base + at, z);
  load8(target_logits, base + at, t);
  for (int i = 0; i < 8; ++i) {
    const float p = __expf(z[i] - max_z) * scale_z;
    const float difference = p - __expf(t[i] - max_t) * scale_t;
    distance += fabsf(difference);
    tilt += difference > 0.0f ? p : (difference < 0.0f ? -p : 0.0f);
  }
}
distance = block_sum(distance, shared);
tilt = block_sum(tilt, shared);
const int label = labels[row];
for (int at = threadIdx.x * 8; at < V; at += stride) {
  load8(logits, base + at, z);
  load8(target_logits, base + at, t);
  for (int i = 0; i < 8; ++i) {
    const float p = __expf(z[i] - max_z) * scale_z;
    const float difference = p - __expf(t[i] - max_t) * scale_t;
    const float sign = difference > 0.0f ? 1.0f : (difference < 0.0f ? -1.0f : 0.0f);
    if (at + i == label) ce[row] = logf(total_z) + max_z - z[i];
    const float pull = p * (ce_weight + l1_weight * (sign - tilt));
    z[i] = share * (pull - (at + i == label ? ce_weight : 0.0f));
  }
  store8(grad, base + at, z);
}
if (threadIdx.x == 0) l1[row] = distance;
