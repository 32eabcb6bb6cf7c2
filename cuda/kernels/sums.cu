// Gradients that are sums over rows: of a bias, and of a norm's gain. CPU twins: models/src/ops/linear.rs (bias_bwd) and
// models/src/ops/norm.rs (rmsnorm_gain_bwd).
//
// Two kernels in a row: the first sums pieces of ROWS rows, the second adds the pieces in their order. Where a piece begins does not
// depend on the device, so neither does the result.
//
// Work:          a thread owns a column; its neighbours read the neighbouring columns of the same row
// Launch:        pieces: 128 threads in x over columns, pieces in y; add_pieces: 128 threads over columns
// Shared memory: none
// Determinism:   rows (and heads within a row) ascending within a piece, then pieces ascending
// Bytes moved:   bias 1 element for each of dy, gain 2; and for every 64 rows a float a column, three times

#define THREADS 128
#define ROWS 64

// pieces[p][j] = Σ dy[r][j] over the rows of piece p; dy [rows, width].
KERNEL(THREADS) bias_pieces(float* pieces, const element* dy, u32 rows, u32 width) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= width) return;
    const u32 end = min(rows, (blockIdx.y + 1) * ROWS);
    float sum = 0.0f;
    for (u32 row = blockIdx.y * ROWS; row < end; row++) sum += to_float(dy[u64(row) * width + j]);
    pieces[u64(blockIdx.y) * width + j] = sum;
}

// pieces[p][j] = Σ dy · x · rstd over the rows and heads of piece p, in the layout of norm.cu.
KERNEL(THREADS) gain_pieces(float* pieces, const element* dy, u32 dy_stride, const float* rstd, const element* x, u32 rows, u32 heads, u32 d,
                            u32 stride) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= d) return;
    const u32 end = min(rows, (blockIdx.y + 1) * ROWS);
    float sum = 0.0f;
    for (u32 row = blockIdx.y * ROWS; row < end; row++) {
        for (u32 head = 0; head < heads; head++) {
            const float normed = to_float(x[u64(row) * stride + head * d + j]) * rstd[u64(row) * heads + head];
            sum = fmaf(to_float(dy[u64(row) * dy_stride + head * d + j]), normed, sum);
        }
    }
    pieces[u64(blockIdx.y) * d + j] = sum;
}

// sum[j] += Σ pieces[p][j], pieces in their order.
KERNEL(THREADS) add_pieces(float* sum, const float* pieces, u32 count, u32 width) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= width) return;
    float total = sum[j];
    for (u32 p = 0; p < count; p++) total += pieces[u64(p) * width + j];
    sum[j] = total;
}
