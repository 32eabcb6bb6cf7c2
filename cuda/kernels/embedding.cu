// Embedding: a row of the table for every token, and the gradient back into the table. CPU twin: models/src/ops/embedding.rs.
//
// Launch:        256 threads in x over a row's eights; rows (forward) or different tokens (backward) in y
// Shared memory: none
// Determinism:   the backward is given the rows sorted by token: a thread owns eight columns of one token's gradient and adds that
//                token's rows in their order; no two threads add to the same place
// Bytes moved:   forward 2 elements for each of x; backward 1 element for each of dx and 8 bytes for each of dE that is touched

#define THREADS 256

// x[r] = E[ids[r]], all rows of d.
KERNEL(THREADS) embedding_fwd(element* x, const u32* ids, const element* table, u32 rows, u32 d) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= d) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        store8(x + u64(row) * d + j, load8(table + u64(ids[row]) * d + j, d - j), d - j);
    }
}

// dE[id] += the sum of the rows of dx whose token is id. Token t of `tokens` is ids[t]; its rows are order[starts[t] .. starts[t + 1]].
KERNEL(THREADS) embedding_bwd(float* dtable, const element* dx, const u32* ids, const u32* starts, const u32* order, u32 tokens, u32 d) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= d) return;
    for (u32 t = blockIdx.y; t < tokens; t += gridDim.y) {
        float* sum = dtable + u64(ids[t]) * d + j;
        float total[8];
#pragma unroll
        for (int i = 0; i < 8; i++) total[i] = i < d - j ? sum[i] : 0.0f;
#pragma unroll 4
        for (u32 k = starts[t]; k < starts[t + 1]; k++) {
            Eight row = load8(dx + u64(order[k]) * d + j, d - j);
#pragma unroll
            for (int i = 0; i < 8; i++) total[i] += row.v[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < d - j) sum[i] = total[i];
        }
    }
}

// dx[ids[t]] += the sum of its rows of dy: the gradient of rows that embedding_fwd gathered from x, which are few of many.
KERNEL(THREADS) gather_bwd(element* dx, const element* dy, const u32* ids, const u32* starts, const u32* order, u32 rows, u32 d) {
    const u32 j = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (j >= d) return;
    for (u32 t = blockIdx.y; t < rows; t += gridDim.y) {
        element* sum = dx + u64(ids[t]) * d + j;
        Eight total = load8(sum, d - j);
        for (u32 k = starts[t]; k < starts[t + 1]; k++) {
            Eight row = load8(dy + u64(order[k]) * d + j, d - j);
#pragma unroll
            for (int i = 0; i < 8; i++) total.v[i] += row.v[i];
        }
        store8(sum, total, d - j);
    }
}
