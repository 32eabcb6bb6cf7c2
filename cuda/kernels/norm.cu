// RMSNorm: y = x · rstd · g with rstd = 1 / √(mean(x²) + ε), forward and backward. CPU twin: models/src/ops/norm.rs.
//
// x and y are `heads` vectors of `d` in each of `rows` rows at distance `stride` (`y_stride`); heads is 1 for the norm of the residual
// stream and the number of heads for q/k norm. g [d], rstd [rows, heads].
//
// Work:          a warp owns a vector, lane l its elements 8 l .. 8 l + 8, then 256 further on, and so forth
// Launch:        256 threads = 8 vectors a block
// Shared memory: none
// Determinism:   a lane's sum runs up its elements, lanes are added in the warp's fixed tree; nothing depends on rows
// Bytes moved:   forward 2 · element + 4 / d an element; residual_rmsnorm_fwd 4 · element; backward 4 · element (dx is added to)

#define THREADS 256

// Row, head and place in memory of the vector that this warp owns.
struct Vector {
    u32 row, head;
    bool any;
};

DEVICE Vector own_vector(u32 rows, u32 heads) {
    u64 i = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    return Vector{u32(i / heads), u32(i % heads), i < u64(rows) * heads};
}

DEVICE float rstd_of(float sum_of_squares, u32 d, float eps) { return 1.0f / sqrtf(sum_of_squares / float(d) + eps); }

KERNEL(THREADS) rmsnorm_fwd(element* y, u32 y_stride, float* rstd, const element* x, const element* gain, float eps, u32 rows, u32 heads,
                            u32 d, u32 stride) {
    Vector own = own_vector(rows, heads);
    if (!own.any) return;
    const u32 lane = threadIdx.x % WARP;
    x += u64(own.row) * stride + own.head * d;
    y += u64(own.row) * y_stride + own.head * d;
    float sum = 0.0f;
    for (u32 j = 8 * lane; j < d; j += 8 * WARP) {
        Eight v = load8(x + j, d - j);
        for (int i = 0; i < 8; i++) sum = fmaf(v.v[i], v.v[i], sum);
    }
    const float scale = rstd_of(warp_sum(sum), d, eps);
    for (u32 j = 8 * lane; j < d; j += 8 * WARP) {
        Eight v = load8(x + j, d - j), g = load8(gain + j, d - j);
        for (int i = 0; i < 8; i++) v.v[i] = v.v[i] * scale * g.v[i];
        store8(y + j, v, d - j);
    }
    if (lane == 0) rstd[u64(own.row) * heads + own.head] = scale;
}
