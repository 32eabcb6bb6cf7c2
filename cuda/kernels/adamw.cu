// AdamW over flat parameters, and the norm of their gradients. CPU twin: models/src/optim.rs.
//
// Weights have two copies: `master` in float, which the optimiser moves, and `weights` in `element`, which the products read; in
// float there is only the master, and `weights` is null.
//
// Work:          norm_pieces: a block owns PIECE elements; norm_total: one block adds the pieces; adamw_step: a thread owns
//                EACH elements, THREADS apart
// Launch:        256 threads
// Shared memory: one double a warp
// Determinism:   squares are exact in double; threads, warps and pieces are added in a fixed order that knows nothing of the device
// Bytes moved:   norm 4 bytes a parameter; step 28 and one element: reads g, m, v, master, writes m, v, master and the weight

#define THREADS 256
#define PIECE 16384
#define EACH 4

// pieces[p] = Σ g² over the elements of piece p.
KERNEL(THREADS) norm_pieces(double* pieces, const float* grads, u64 n) {
    SharedMemory memory;
    Shared<double> sums = memory.take<double>(THREADS / WARP);
    const u64 start = u64(blockIdx.x) * PIECE;
    double sum = 0.0;
    for (u64 i = start + threadIdx.x; i < min(n, start + PIECE); i += THREADS) sum += double(grads[i]) * double(grads[i]);
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) pieces[blockIdx.x] = sum;
}

// norm[0] = √ Σ pieces: the Euclidean norm of all gradients; not finite if and only if one of them is not.
KERNEL(THREADS) norm_total(double* norm, const double* pieces, u32 count) {
    SharedMemory memory;
    Shared<double> sums = memory.take<double>(THREADS / WARP);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += pieces[i];
    sum = block_sum(sum, sums);
    if (threadIdx.x == 0) norm[0] = sqrt(sum);
}

// With g the clipped gradient: m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²,
// w ← keep · w − rate · m / (√v · root_scale + ε), keep = 1 − lr · decay, rate = lr / (1 − β₁ᵗ), root_scale = 1 / √(1 − β₂ᵗ).
// clip_norm < 0 does not clip. A norm that is not finite changes nothing.
KERNEL(THREADS) adamw_step(element* weights, float* master, float* m, float* v, const float* grads, const double* norm, double clip_norm,
                           float beta1, float beta2, float gain1, float gain2, float root_scale, float eps, float keep, float rate, u64 n) {
    const double size = norm[0];
    if (!isfinite(size)) return;
    const float clip = clip_norm < 0.0 ? 1.0f : float(fmin(clip_norm / (size + 1e-6), 1.0));
    const u64 first = u64(blockIdx.x) * (EACH * THREADS) + threadIdx.x;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
        const u64 i = first + k * THREADS;
        if (i < n) {
            const float g = grads[i] * clip;
            const float moment = beta1 * m[i] + gain1 * g, square = beta2 * v[i] + gain2 * g * g;
            const float w = master[i] * keep - rate * (moment / (sqrtf(square) * root_scale + eps));
            m[i] = moment, v[i] = square, master[i] = w;
            if (weights) weights[i] = to_element(w);
        }
    }
}
