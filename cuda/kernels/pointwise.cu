// SwiGLU: a = silu(g) · u with silu(g) = g · σ(g), forward and backward; and a bias as the beginning of a product's sum.
// CPU twins: models/src/ops/pointwise.rs, bias_fwd in models/src/ops/linear.rs.
//
// gate and up lie side by side in [rows, 2 d_ff], a is [rows, d_ff].
//
// Work:          a thread owns eight neighbouring elements of a row
// Launch:        256 threads in x over a row's eights, rows in y
// Shared memory: none
// Determinism:   no sums
// Bytes moved:   forward 3 elements for each of a; backward 5; bias 1 for each of y

#define THREADS 256

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

KERNEL(THREADS) swiglu_fwd(element* a, const element* gate_up, u32 rows, u32 d_ff) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= d_ff) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const element* gate = gate_up + u64(row) * 2 * d_ff + j;
        Eight g = load8(gate, d_ff - j), u = load8(gate + d_ff, d_ff - j);
#pragma unroll
        for (int i = 0; i < 8; i++) g.v[i] = g.v[i] * sigmoid(g.v[i]) * u.v[i];
        store8(a + u64(row) * d_ff + j, g, d_ff - j);
    }
}

// With σ = σ(g): dup = da · g σ; dgate = da · u · σ (1 + g (1 − σ)). Both are written.
KERNEL(THREADS) swiglu_bwd(element* dgate_up, const element* da, const element* gate_up, u32 rows, u32 d_ff) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= d_ff) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const u64 start = u64(row) * 2 * d_ff + j;
        Eight g = load8(gate_up + start, d_ff - j), u = load8(gate_up + start + d_ff, d_ff - j);
        Eight d = load8(da + u64(row) * d_ff + j, d_ff - j);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float s = sigmoid(g.v[i]), slope = s * fmaf(g.v[i], 1.0f - s, 1.0f);
            const float dup = d.v[i] * (g.v[i] * s);
            g.v[i] = d.v[i] * u.v[i] * slope;
            u.v[i] = dup;
        }
        store8(dgate_up + start, g, d_ff - j);
        store8(dgate_up + start + d_ff, u, d_ff - j);
    }
}

// Every row of y [rows, width] becomes the bias.
KERNEL(THREADS) bias_fwd(element* y, const element* b, u32 rows, u32 width) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= width) return;
    const Eight bias = load8(b + j, width - j);
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) store8(y + u64(row) * width + j, bias, width - j);
}
