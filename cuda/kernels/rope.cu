// Rotary position embedding on half-split heads, in place: pairs (x[i], x[i + hd/2]) turn by position · frequency_i.
// CPU twin: models/src/ops/rope.rs.
//
// x holds, in each of `rows` rows at distance `stride`, `n_heads` query heads and then `n_kv_heads` key heads of width 2 · half; what lies
// behind them (values) is not touched. Query heads are also scaled by `q_scale`, 1/√hd. table [positions, 2, half]: cosines, then
// sines of a position, made on the CPU.
//
// Work:          a thread owns a pair
// Launch:        256 threads, one pair each
// Shared memory: none
// Determinism:   no sums
// Bytes moved:   2 elements for each of x; the table stays in L2

#define THREADS 256

KERNEL(THREADS) rope(element* x, const u32* positions, const float* table, u32 rows, u32 stride, u32 n_heads, u32 n_kv_heads, u32 half,
                     float q_scale, u32 backward) {
    const u32 pairs = (n_heads + n_kv_heads) * half;
    const u64 own = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (own >= u64(rows) * pairs) return;
    const u32 row = u32(own / pairs), head = u32(own % pairs) / half, i = u32(own % pairs) % half;
    const float* angle = table + u64(positions[row]) * 2 * half + i;
    const float c = angle[0], s = backward ? -angle[half] : angle[half];
    const float scale = head < n_heads ? q_scale : 1.0f;
    element* low = x + u64(row) * stride + head * 2 * half + i;
    element* high = low + half;
    const float a = to_float(*low), b = to_float(*high);
    *low = to_element(fmaf(b, -s, a * c) * scale);
    *high = to_element(fmaf(a, s, b * c) * scale);
}
