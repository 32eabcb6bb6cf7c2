// Causal grouped-query attention over the paths of a packed token tree, or over a paged cache (prefill): o = softmax(q · Kᵀ) · V.
// CPU twin: models/src/ops/attention/mod.rs, attention_fwd. How softmax goes by key blocks: attention.cuh.
//
// q is in rows of q_stride, k and v in rows of kv_stride. out [rows, n_heads · head_dim]; lse [rows, n_heads], if asked for, is
// log Σ exp s of each query, which the backward recomputes the probabilities from. A query sees at most `window` keys.
//
// Work:          a block owns a tile of up to 64 query rows of one key head, a warp 16 of them with all their keys
// Launch:        grid (tiles, n_kv_heads), 128 threads
// Shared memory: keys and values of two key blocks, 4 · 64 · (HEAD_DIM + 8) elements; the next is on its way while one is worked on
// Determinism:   an element of s and of a block's o is one chain, blocks are folded by position; nothing depends on the tile
// Bytes moved:   q and out once; k and v of its path once for each tile

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILE (WARPS * 16)

KERNEL(THREADS) attention_fwd(element* out, float* lse, const element* q, u32 q_stride, const element* kv, u32 kv_stride,
                              const u32* table, u32 shift, const Tile* tiles, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 window) {
    SharedMemory memory;
    Shared<element> k = memory.take<element>(2 * KEYS * LD), v = memory.take<element>(2 * KEYS * LD);
    const u32 group = n_heads / n_kv_heads, warp_row = threadIdx.x / WARP * 16;
    const Tile tile = tiles[blockIdx.x];
    const Span span = span_of(tile, group, window);
    const Keys keys = keys_of(kv, kv_stride, table, shift, tile, n_kv_heads, head_dim);

    // The queries pass through the second place for keys on their way into registers.
    stage_queries<TILE>(k + KEYS * LD, q, q_stride, tile, group, head_dim);
    stage_keys(k, v, keys, span.first, span.keys);
    async_commit();
    async_wait<0>();
    __syncthreads();
    FragmentA query[HEAD_DIM / 16];
    load_rows(query, k + (KEYS + warp_row) * LD);
    __syncthreads();

    u32 own[2];
#pragma unroll
    for (int row = 0; row < 2; row++) own[row] = query_of(tile, warp_row + accumulator_row(2 * row), group).position;
    Folded rows[2];
    Accumulator o[HEAD_DIM / 8];
    for (u32 block = span.first; block < span.end; block++) {
        const u32 here = (block - span.first) % 2 * KEYS * LD, next = KEYS * LD - here;
        if (block + 1 < span.end) stage_keys(k + next, v + next, keys, block + 1, span.keys);
        async_commit();
        Accumulator s[KEYS / 8];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            s[j] = scores(query, k + (here + j * 8 * LD));
            mask(s[j], block * KEYS + j * 8, own, window);
        }
        float m[2], l[2];
        softmax(s, m, l);
        FragmentA p[KEYS / 16];
        to_fragments(p, s);
#pragma unroll
        for (int row = 0; row < 2; row++) fold(rows[row], m[row], l[row]);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) fold_numbers(rows, o[n], weigh(p, v + (here + n * 8)));
        async_wait<0>();
        __syncthreads();
    }

#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 i = warp_row + accumulator_row(2 * row);
        if (i >= tile.queries) continue;
        const Query query = query_of(tile, i, group);
        const u64 at = u64(query.row) * n_heads + query.head;
        store_row(out + at * head_dim, o, row, 1.0f / rows[row].sum, head_dim);
        if (lse != nullptr && threadIdx.x % 4 == 0) lse[at] = rows[row].top + logf(rows[row].sum);
    }
}
