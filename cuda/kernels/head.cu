// The head: rows of logits to log-probability and entropy of their tokens, and the seeds of these back to dlogits; hidden states to
// values, and back. CPU twin: models/src/ops/head.rs.
//
// Works on a chunk of targets at a time. Every row of logits [rows, vocab] has one target: logits in float, which a product made of the
// target's hidden state h [rows, d]. A target's log-probability is over all tokens or over its kept set K, the ids
// kept[starts[row] .. starts[row + 1]], ascending; without a list, or where it is empty, K is the whole vocabulary.
//
// With z = logits / T: log p_j = z_j − max z − ln Σ exp(z − max z), over K. H is the entropy over the whole vocabulary. With seeds
// s = dL/dlogp, e = dL/dH: dz_j = s (1[j = token] − p^K_j) − e p_j (log p_j + H), and dlogits = dz / T.
//
// Work:          head: a block owns a row (see row_stats.cuh); value_fwd: a warp owns a row, lane l its elements 8 l .. 8 l + 8, then 256
//                further on, and so forth; value_bwd: a thread owns a column of a piece of ROWS rows
// Launch:        256 threads; head: rows blocks; value_fwd: 8 rows a block; value_bwd: columns in x, pieces in y
// Shared memory: head_fwd one float and one double a warp
// Determinism:   sums of a row in one fixed tree, whatever its neighbours; dw and db: rows ascending in a piece, pieces added in order
// Bytes moved:   head_fwd 4 a logit, twice where the chunk is larger than the cache (at 512 rows it is); head_bwd 4 + element a logit; value_fwd 1 element
//                for each of h; value_bwd 3 elements for each of h

#define ROWS 64

KERNEL(THREADS) head_fwd(float* logp, float* entropy, double* saved, const float* logits, const u32* tokens, const u32* kept,
                         const u32* starts, float temperature, u32 vocab) {
    SharedMemory memory;
    Shared<float> tops = memory.take<float>(THREADS / WARP);
    Shared<double> sums = memory.take<double>(THREADS / WARP);
    const u32 row = blockIdx.x;
    logits += u64(row) * vocab;
    const RowStats stats = row_stats(logits, vocab, temperature, tops, sums);
    const u32 start = starts ? starts[row] : 0, n = starts ? starts[row + 1] - start : 0;
    const double normaliser = n > 0 ? kept_sum(stats, logits, kept + start, n, sums) : stats.sum;
    if (threadIdx.x == 0) {
        save_stats(saved + u64(row) * STATS, stats, normaliser);
        logp[row] = logp_of(stats, logits[tokens[row]], normaliser);
        entropy[row] = float(log(stats.sum) - stats.weighted / stats.sum);
    }
}

// What the seeds come to at a logit, as far as the whole vocabulary is concerned:
// −p (s + e (log p + H)) / T, with log p + H = (z − max) − Σ w (z − max) / Σ w.
struct Slope {
    float scale, mean, s, e;
};
DEVICE float slope_at(const Slope& slope, const RowStats& stats, float logit) {
    const float d = shifted(stats, logit), p = exp_nonpositive(d) * slope.scale;
    return p * fmaf(slope.e, fmaxf(d, -LARGEST_FLOAT) - slope.mean, slope.s);
}

// dlogits [rows, vocab] from what head_fwd saved; a seed that is null is zero.
KERNEL(THREADS) head_bwd(element* dlogits, const float* logits, const double* saved, const u32* tokens, const u32* kept, const u32* starts,
                         const float* dlogp, const float* dentropy, float temperature, u32 vocab) {
    const u32 row = blockIdx.x, token = tokens[row];
    logits += u64(row) * vocab;
    dlogits += u64(row) * vocab;
    saved += u64(row) * STATS;
    const RowStats stats = read_stats(saved, temperature);
    const u32 start = starts ? starts[row] : 0, n = starts ? starts[row + 1] - start : 0;
    const float s = dlogp ? dlogp[row] : 0.0f, inverse_t = 1.0f / temperature;
    Slope slope;
    slope.scale = -float(1.0 / stats.sum) / temperature;
    slope.mean = float(stats.weighted / stats.sum);
    slope.s = n > 0 ? 0.0f : s;
    slope.e = dentropy ? dentropy[row] : 0.0f;
    for (u32 j = 8 * threadIdx.x; j < vocab; j += 8 * THREADS) {
        Eight x = load8(logits + j, vocab - j);
#pragma unroll
        for (int i = 0; i < 8; i++) x.v[i] = slope_at(slope, stats, x.v[i]) + (j + i == token ? s * inverse_t : 0.0f);
        store8(dlogits + j, x, vocab - j);
    }
    if (n > 0) {
        // What was written above is written again with the kept set's part, from the start, since `element` may have rounded it.
        __syncthreads();
        for (u32 k = threadIdx.x; k < n; k += THREADS) {
            const u32 id = kept[start + k];
            const double e = exp(double(shifted(stats, logits[id])));
            const float part = float(-(double(s) * e / saved[3])) * inverse_t;
            dlogits[id] = to_element(slope_at(slope, stats, logits[id]) + part + (id == token ? s * inverse_t : 0.0f));
        }
    }
}

// value[r] = w · h[r] + b.
KERNEL(THREADS) value_fwd(float* value, const element* h, const element* w, const element* b, u32 rows, u32 d) {
    const u32 row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    h += u64(row) * d;
    float sum = 0.0f;
    for (u32 j = 8 * lane; j < d; j += 8 * WARP) {
        const Eight x = load8(h + j, d - j), weight = load8(w + j, d - j);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(weight.v[i], x.v[i], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) value[row] = sum + to_float(b[0]);
}

// dh[r][j] += dvalue[r] · w[j]; of each piece of rows, dw_pieces[p][j] = Σ dvalue[r] · h[r][j] and db_pieces[p] = Σ dvalue[r].
KERNEL(THREADS) value_bwd(element* dh, float* dw_pieces, float* db_pieces, const float* dvalue, const element* h, const element* w, u32 rows,
                          u32 d) {
    const u32 j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= d) return;
    const u32 end = min(rows, (blockIdx.y + 1) * ROWS);
    const float weight = to_float(w[j]);
    float dw = 0.0f, db = 0.0f;
    for (u32 row = blockIdx.y * ROWS; row < end; row++) {
        const u64 at = u64(row) * d + j;
        dh[at] = to_element(fmaf(dvalue[row], weight, to_float(dh[at])));
        dw = fmaf(dvalue[row], to_float(h[at]), dw);
        db += dvalue[row];
    }
    dw_pieces[u64(blockIdx.y) * d + j] = dw;
    if (j == 0) db_pieces[blockIdx.y] = db;
}
