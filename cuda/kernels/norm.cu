// RMSNorm: y = x · rstd · g with rstd = 1 / √(mean(x²) + ε), forward and backward. CPU twin: models/src/ops/norm.rs.
//
// x and y are `heads` vectors of `d` in each of `rows` rows at distance `stride` (`y_stride`); heads is 1 for the norm of the residual
// stream and the number of heads for q/k norm. g [d], rstd [rows, heads].
//
// Work:          a warp owns a vector, lane l its elements 8 l .. 8 l + 8, then 256 further on, and so forth
// Launch:        256 threads = 8 vectors a block
// Shared memory: none
// Determinism:   a lane's sum runs up its elements, lanes are added in the warp's fixed tree; nothing depends on rows
// Bytes moved:   forward 2 elements for each of x; with a residual 4; backward 4, since dx is added to, or 3

#define THREADS 256

// The vector that this warp owns.
struct Vector {
    u32 row, head;
    bool any;
};

DEVICE Vector own_vector(u32 rows, u32 heads) {
    u64 i = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    return Vector{u32(i / heads), u32(i % heads), i < u64(rows) * heads};
}

// y = x · rstd · g of one vector by one warp; returns rstd.
DEVICE float norm_vector(element* y, const element* x, const element* gain, float eps, u32 d) {
    const u32 first = 8 * (threadIdx.x % WARP);
    float sum = 0.0f;
    for (u32 j = first; j < d; j += 8 * WARP) {
        Eight v = load8(x + j, d - j);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(v.v[i], v.v[i], sum);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(sum) / float(d) + eps);
    for (u32 j = first; j < d; j += 8 * WARP) {
        Eight v = load8(x + j, d - j), g = load8(gain + j, d - j);
#pragma unroll
        for (int i = 0; i < 8; i++) v.v[i] = v.v[i] * rstd * g.v[i];
        store8(y + j, v, d - j);
    }
    return rstd;
}

KERNEL(THREADS) rmsnorm_fwd(element* y, u32 y_stride, float* rstd, const element* x, const element* gain, float eps, u32 rows, u32 heads,
                            u32 d, u32 stride) {
    const Vector own = own_vector(rows, heads);
    if (!own.any) return;
    const float scale = norm_vector(y + u64(own.row) * y_stride + own.head * d, x + u64(own.row) * stride + own.head * d, gain, eps, d);
    if (threadIdx.x % WARP == 0) rstd[u64(own.row) * heads + own.head] = scale;
}

// sum = x + delta, the residual stream after a block's branch, and y = norm(sum) for the branch after it; all [rows, d].
KERNEL(THREADS) residual_rmsnorm_fwd(element* sum, element* y, float* rstd, const element* x, const element* delta, const element* gain,
                                     float eps, u32 rows, u32 d) {
    const Vector own = own_vector(rows, 1);
    if (!own.any) return;
    const u64 start = u64(own.row) * d;
    for (u32 j = 8 * (threadIdx.x % WARP); j < d; j += 8 * WARP) {
        Eight a = load8(x + start + j, d - j), b = load8(delta + start + j, d - j);
#pragma unroll
        for (int i = 0; i < 8; i++) a.v[i] += b.v[i];
        store8(sum + start + j, a, d - j);
    }
    // Each lane reads back what it wrote itself: the norm is that of the rounded sum, which the next block will read too.
    const float scale = norm_vector(y + start, sum + start, gain, eps, d);
    if (threadIdx.x % WARP == 0) rstd[own.row] = scale;
}

// dx += rstd · (e − n · mean(e · n)) with n = x · rstd and e = dy · g; without `accumulate` dx is written.
KERNEL(THREADS) rmsnorm_bwd(element* dx, const element* dy, u32 dy_stride, const float* rstd, const element* x, const element* gain, u32 rows,
                            u32 heads, u32 d, u32 stride, u32 accumulate) {
    const Vector own = own_vector(rows, heads);
    if (!own.any) return;
    const u32 first = 8 * (threadIdx.x % WARP);
    const u64 start = u64(own.row) * stride + own.head * d;
    dx += start, x += start, dy += u64(own.row) * dy_stride + own.head * d;
    const float scale = rstd[u64(own.row) * heads + own.head];
    float sum = 0.0f;
    for (u32 j = first; j < d; j += 8 * WARP) {
        Eight e = load8(dy + j, d - j), g = load8(gain + j, d - j), v = load8(x + j, d - j);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(e.v[i] * g.v[i], v.v[i] * scale, sum);
    }
    const float mean = -warp_sum(sum) / float(d);
    for (u32 j = first; j < d; j += 8 * WARP) {
        Eight e = load8(dy + j, d - j), g = load8(gain + j, d - j), v = load8(x + j, d - j), out = load8(dx + j, accumulate ? d - j : 0);
#pragma unroll
        for (int i = 0; i < 8; i++) out.v[i] = fmaf(scale, fmaf(v.v[i] * scale, mean, e.v[i] * g.v[i]), out.v[i]);
        store8(dx + j, out, d - j);
    }
}
