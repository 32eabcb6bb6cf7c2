// Attention of few new tokens over a paged cache, and what writes their keys and values there. CPU twin:
// models/src/ops/attention/mod.rs, attend_token. How softmax goes by key blocks: attention.cuh.
//
// A layer of the cache is [pages · page size, 2 · n_kv_heads · head_dim]: a row has what a row of q, k and v has after its q. A page
// is so many rows that follow each other, for all key heads. The table names the pages of each sequence in the order of positions.

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILE 16
#define COLUMNS ((HEAD_DIM / 8 + WARPS - 1) / WARPS) // accumulators of o in a warp
#define SCORES (KEYS + 8)                            // distance of rows of scores

// cache[slots[row]] = k and v of the row.
//
// Work:          a thread owns eight neighbouring numbers of a row
// Launch:        128 threads, fewer than 2^32 in all; shared memory: none
// Bytes moved:   2 · element a number
KERNEL(THREADS) kv_append(element* cache, const element* qkv, const u32* slots, u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim) {
    const u32 width = 2 * n_kv_heads * head_dim, across = (width + 7) / 8, q_width = n_heads * head_dim;
    const u32 i = blockIdx.x * THREADS + threadIdx.x, row = i / across, column = i % across * 8;
    if (row >= rows) return;
    const element* from = qkv + (u64(row) * (q_width + width) + q_width + column);
    store8(cache + (u64(slots[row]) * width + column), load8(from, width - column), width - column);
}

// A partial result of a key block for 16 query rows: of each, m, l and o [HEAD_DIM].
DEVICE u64 partial_of(u32 tile, u32 n_kv_heads, u32 blocks, u32 block, u32 i) {
    return (((u64(tile) * n_kv_heads + blockIdx.y) * blocks + block) * TILE + i) * (HEAD_DIM + 2);
}

// o = softmax(q · Kᵀ) · V. Without `partials` it is written to out. With them the grid's z deals out the key blocks, `share` to
// each, and what comes of each block is left for attention_merge: for few sequences, whose blocks alone would not fill the device.
//
// Work:          a block owns up to 16 query rows of one key head: a token's heads. For the scores a warp has 16 of the block's
//                keys; for o it has every fourth eight columns. All warps do the same softmax over the scores of all
// Launch:        grid (tiles, n_kv_heads, shares), 128 threads
// Shared memory: 2 · 2 · 64 · (HEAD_DIM + 8) elements of keys and values, 16 · (HEAD_DIM + 8) of queries, 16 · 72 floats of scores
// Determinism:   numbers are made from the same terms in the same order as in attention_fwd, so they have the same bits
// Bytes moved:   k and v of its path once for each tile
KERNEL(THREADS) attention_decode(element* out, float* partials, const element* q, u32 q_stride, const element* kv, u32 kv_stride,
                                 const u32* table, u32 shift, const Tile* tiles, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 window,
                                 u32 share, u32 blocks) {
    SharedMemory memory;
    Shared<element> k = memory.take<element>(2 * KEYS * LD), v = memory.take<element>(2 * KEYS * LD);
    Shared<element> queries = memory.take<element>(TILE * LD);
    Shared<float> all_scores = memory.take<float>(TILE * SCORES);
    const u32 group = n_heads / n_kv_heads, warp = threadIdx.x / WARP;
    const Tile tile = tiles[blockIdx.x];
    const Span span = span_of(tile, group, window);
    const u32 first = span.first + blockIdx.z * share, end = first + share < span.end ? first + share : span.end;
    const Keys keys = keys_of(kv, kv_stride, table, shift, tile, n_kv_heads, head_dim);
    if (first >= end) return;

    stage_queries<TILE>(queries, q, q_stride, tile, group, head_dim);
    stage_keys(k, v, keys, first, span.keys);
    async_commit();
    async_wait<0>();
    __syncthreads();
    FragmentA query[HEAD_DIM / 16];
    load_rows(query, queries);

    u32 own[2];
#pragma unroll
    for (int row = 0; row < 2; row++) own[row] = query_of(tile, accumulator_row(2 * row), group).position;
    Folded rows[2];
    Accumulator o[COLUMNS];
    for (u32 block = first; block < end; block++) {
        const u32 here = (block - first) % 2 * KEYS * LD, next = KEYS * LD - here;
        if (block + 1 < end) stage_keys(k + next, v + next, keys, block + 1, span.keys);
        async_commit();
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 key = warp * 16 + j * 8;
            Accumulator s = scores(query, k + (here + key * LD));
            mask(s, block * KEYS + key, own, window);
#pragma unroll
            for (int i = 0; i < 4; i++) all_scores[accumulator_row(i) * SCORES + key + accumulator_column(i)] = s.v[i];
        }
        __syncthreads();
        Accumulator s[KEYS / 8];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[j].v[i] = all_scores[accumulator_row(i) * SCORES + j * 8 + accumulator_column(i)];
        }
        float m[2], l[2];
        softmax(s, m, l);
        FragmentA p[KEYS / 16];
        to_fragments(p, s);
        if (partials == nullptr) {
#pragma unroll
            for (int row = 0; row < 2; row++) fold(rows[row], m[row], l[row]);
        }
        const u64 at[2] = {partial_of(blockIdx.x, n_kv_heads, blocks, block - span.first, accumulator_row(0)),
                           partial_of(blockIdx.x, n_kv_heads, blocks, block - span.first, accumulator_row(2))};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const u32 n = c * WARPS + warp;
            if (n >= HEAD_DIM / 8) continue;
            const Accumulator part = weigh(p, v + (here + n * 8));
            if (partials == nullptr) {
                fold_numbers(rows, o[c], part);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) partials[at[i / 2] + 2 + n * 8 + accumulator_column(i)] = part.v[i];
            }
        }
        if (partials != nullptr && warp == 0 && threadIdx.x % 4 == 0) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                partials[at[row]] = m[row];
                partials[at[row] + 1] = l[row];
            }
        }
        async_wait<0>();
        __syncthreads();
    }
    if (partials != nullptr) return;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 i = accumulator_row(2 * row);
        if (i >= tile.queries) continue;
        const Query query = query_of(tile, i, group);
        element* to = out + (u64(query.row) * n_heads + query.head) * head_dim;
        const float inverse = 1.0f / rows[row].sum;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const u32 column = (c * WARPS + warp) * 8 + accumulator_column(0);
            if (column < head_dim) store2(to + column, o[c].v[2 * row] * inverse, o[c].v[2 * row + 1] * inverse, head_dim - column);
        }
    }
}

// out from the partial results of attention_decode, block after block.
//
// Work:          a warp owns a query row of one key head, a lane every 32nd column
// Launch:        grid (tiles · 16 / 4, n_kv_heads), 128 threads; shared memory: none
// Determinism:   blocks are folded by position, as attention_fwd does
// Bytes moved:   4 · (HEAD_DIM + 2) for each query row and key block
KERNEL(THREADS) attention_merge(element* out, const float* partials, const Tile* tiles, u32 n_heads, u32 n_kv_heads, u32 head_dim,
                                u32 window, u32 blocks) {
    const u32 own = blockIdx.x * WARPS + threadIdx.x / WARP, i = own % TILE, lane = threadIdx.x % WARP, group = n_heads / n_kv_heads;
    const Tile tile = tiles[own / TILE];
    if (i >= tile.queries) return;
    const Span span = span_of(tile, group, window);
    Folded row;
    float o[(HEAD_DIM + WARP - 1) / WARP] = {};
    for (u32 block = span.first; block < span.end; block++) {
        const float* part = partials + partial_of(own / TILE, n_kv_heads, blocks, block - span.first, i);
        fold(row, part[0], part[1]);
#pragma unroll
        for (u32 column = lane, c = 0; c < (HEAD_DIM + WARP - 1) / WARP; column += WARP, c++) {
            if (column < head_dim) o[c] = fold_number(row, o[c], part[2 + column]);
        }
    }
    const Query query = query_of(tile, i, group);
    element* to = out + (u64(query.row) * n_heads + query.head) * head_dim;
    const float inverse = 1.0f / row.sum;
#pragma unroll
    for (u32 column = lane, c = 0; c < (HEAD_DIM + WARP - 1) / WARP; column += WARP, c++) {
        if (column < head_dim) to[column] = to_element(o[c] * inverse);
    }
}
