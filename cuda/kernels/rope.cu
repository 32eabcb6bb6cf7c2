// Rotary position embedding on half-split heads, in place: pairs (x[i], x[i + hd/2]) turn by position · frequency_i.
// CPU twin: models/src/ops/rope.rs.
//
// x holds, in each of `rows` rows at distance `stride`, `n_heads` query heads and then `n_kv_heads` key heads of width 2 · half; what lies
// behind them (values) is not touched. Query heads are also scaled by `q_scale`, 1/√hd. table [positions, 2, half]: cosines, then
// sines of a position, made on the CPU.
//
// Work:          a thread owns up to eight neighbouring pairs of a head
// Launch:        256 threads, fewer than 2^32 in all
// Shared memory: none
// Determinism:   no sums
// Bytes moved:   2 elements for each of x; the table stays in L2

#define THREADS 256

KERNEL(THREADS) rope(element* x, const u32* positions, const float* table, u32 rows, u32 stride, u32 n_heads, u32 n_kv_heads, u32 half,
                     float q_scale, u32 backward) {
    const u32 across = (half + 7) / 8, heads = n_heads + n_kv_heads, own = blockIdx.x * THREADS + threadIdx.x;
    const u32 row = own / (heads * across), head = own / across % heads, i = own % across * 8;
    if (row >= rows) return;
    const int count = int(half - i);
    const float* angle = table + u64(positions[row]) * 2 * half + i;
    element* low = x + (u64(row) * stride + head * 2 * half + i);
    const Eight c = load8(angle, count), s = load8(angle + half, count);
    Eight a = load8(low, count), b = load8(low + half, count);
    const float scale = head < n_heads ? q_scale : 1.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float sine = backward ? -s.v[k] : s.v[k], before = a.v[k];
        a.v[k] = fmaf(b.v[k], -sine, before * c.v[k]) * scale;
        b.v[k] = fmaf(before, sine, b.v[k] * c.v[k]) * scale;
    }
    store8(low, a, count);
    store8(low + half, b, count);
}
