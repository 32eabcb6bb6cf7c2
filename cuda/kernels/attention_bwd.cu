// The way back through attention over a packed token tree. CPU twin: models/src/ops/attention/backward.rs.
//
//   P = exp(s − lse);  dP = dO · Vᵀ;  dS = P ∘ (dP − delta) with delta = Σ dO ∘ O;  dQ = dS · K;  dK = dSᵀ · Q;  dV = Pᵀ · dO
//
// attention_delta comes first; attention_bwd_q owns query rows, as the forward does; attention_bwd_kv owns keys and goes through all
// queries that see them: later ones of their own segment, then those of its descendants in segment order. s is computed twice; in
// return every number has one owner, which sums it in registers in one order, without atomics. The many readers of a shared prompt
// are cut into pieces, whose sums attention_bwd_add adds in their order.
//
// dqkv is written, not added to: its q columns by attention_bwd_q, its k and v columns by the other two, each once.

#define WARPS 4
#define THREADS (WARPS * WARP)
#define TILE (WARPS * 16)

// delta = Σ dO ∘ O of each row and head.
//
// Work:          a warp owns a head of a row, a lane every 32nd of its numbers
// Launch:        128 threads; shared memory: none
// Determinism:   a lane sums upwards, then the warp's fixed tree
// Bytes moved:   2 · element a number
KERNEL(THREADS) attention_delta(float* delta, const element* dout, const element* out, u32 rows, u32 n_heads, u32 head_dim) {
    const u64 own = u64(blockIdx.x) * WARPS + threadIdx.x / WARP;
    if (own >= u64(rows) * n_heads) return;
    float sum = 0.0f;
    for (u32 j = threadIdx.x % WARP; j < head_dim; j += WARP) {
        sum = fmaf(to_float(dout[own * head_dim + j]), to_float(out[own * head_dim + j]), sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) delta[own] = sum;
}

#ifdef ELEMENT_BF16
#define PRODUCTS (HEAD_DIM / 16)
#else
#define PRODUCTS 2 // in f32 they take many registers
#endif

// The product of 16 rows and eight rows over the head's width, one chain.
DEVICE Accumulator dot_rows(Shared<element> a, Shared<element> b) {
    Accumulator c;
#pragma unroll PRODUCTS
    for (int d = 0; d < HEAD_DIM / 16; d++) mma(c, load_a(a + d * 16, LD), load_b(b + d * 16, LD));
    return c;
}

// x += a · b for all columns; b is 16 rows.
DEVICE void add_product(Accumulator (&x)[HEAD_DIM / 8], const FragmentA& a, Shared<element> b) {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) mma(x[n], a, load_b_t(b + n * 8, LD));
}

// dQ of the query rows of a tile.
//
// Work:          a block owns a tile of up to 64 query rows of one key head, a warp 16 of them with all their keys
// Launch:        grid (tiles, n_kv_heads), 128 threads
// Shared memory: q, dO, k and v of 64 rows, 4 · 64 · (HEAD_DIM + 8) elements
// Determinism:   one chain over the positions of the path, in key blocks; nothing depends on the tile
// Bytes moved:   q, dO and dQ once; k and v of its path once for each tile
KERNEL(THREADS) attention_bwd_q(element* dqkv, const element* dout, const float* lse, const float* delta, const element* qkv,
                                const u32* table, const Tile* tiles, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 window) {
    SharedMemory memory;
    Shared<element> q = memory.take<element>(TILE * LD), d_o = memory.take<element>(TILE * LD);
    Shared<element> k = memory.take<element>(KEYS * LD), v = memory.take<element>(KEYS * LD);
    const u32 group = n_heads / n_kv_heads, q_width = n_heads * head_dim, width = q_width + 2 * n_kv_heads * head_dim;
    const u32 warp_row = threadIdx.x / WARP * 16;
    const Tile tile = tiles[blockIdx.x];
    const Span span = span_of(tile, group, window);
    const Keys keys = keys_of(qkv + q_width, width, table, 0, tile, n_kv_heads, head_dim);
    stage_queries<TILE>(q, qkv, width, tile, group, head_dim);
    stage_queries<TILE>(d_o, dout, q_width, tile, group, head_dim);

    u32 own[2];
    float own_lse[2] = {0.0f, 0.0f}, own_delta[2] = {0.0f, 0.0f};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 i = warp_row + accumulator_row(2 * row);
        const Query query = query_of(tile, i, group);
        const u64 at = u64(query.row) * n_heads + query.head;
        own[row] = query.position;
        if (i < tile.queries) own_lse[row] = lse[at], own_delta[row] = delta[at];
    }
    Accumulator dq[HEAD_DIM / 8];
    for (u32 block = span.first; block < span.end; block++) {
        stage_keys(k, v, keys, block, span.keys);
        async_commit();
        async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            Accumulator ds[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 key = j * 16 + half * 8;
                const Accumulator s = dot_rows(q + warp_row * LD, k + key * LD), dp = dot_rows(d_o + warp_row * LD, v + key * LD);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const bool seen = sees(own[i / 2], block * KEYS + key + accumulator_column(i), window);
                    const float p = seen ? exp2f((s.v[i] - own_lse[i / 2]) * LOG2E) : 0.0f;
                    ds[half].v[i] = p * (dp.v[i] - own_delta[i / 2]);
                }
            }
            add_product(dq, to_fragment(ds[0], ds[1]), k + j * 16 * LD);
        }
        __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 i = warp_row + accumulator_row(2 * row);
        if (i >= tile.queries) continue;
        const Query query = query_of(tile, i, group);
        store_row(dqkv + (u64(query.row) * width + query.head * head_dim), dq, row, 1.0f, head_dim);
    }
}

// Up to 64 keys of a segment, and the tiles of queries that may see them, or a piece of these: `readers` of a list, from `first` on.
struct KeyTile {
    u32 row, position; // of the first key
    u32 keys;
    u32 first, readers;
    u32 sums; // row of the first key's sums, or WHOLE
};
#define WHOLE 0xffffffffu

// A row of sums, for each key of each piece: dK [HEAD_DIM], then dV, of all key heads.
DEVICE u64 sums_of(u32 row, u32 n_kv_heads) { return (u64(row) * n_kv_heads + blockIdx.y) * (2 * HEAD_DIM); }

// The lane's part of a row of accumulators, as floats.
DEVICE void store_sums(float* p, const Accumulator (&x)[HEAD_DIM / 8], int row) {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) p[n * 8 + accumulator_column(i)] = x[n].v[2 * row + i];
    }
}

// dK and dV of the keys of a tile, summed over the queries that see them and over the heads that share the key head.
//
// Work:          a block owns a tile of up to 64 keys of one key head (or a piece), a warp 16 of the keys with all their queries
// Launch:        grid (key tiles, n_kv_heads), 128 threads
// Shared memory: q, dO, k and v of 64 rows, 4 · 64 · (HEAD_DIM + 8) elements; lse, delta and position of 64 query rows
// Determinism:   one chain over the query rows in the order of the list
// Bytes moved:   k, v, dK and dV once; q and dO of all its readers once for each tile
KERNEL(THREADS) attention_bwd_kv(element* dqkv, const element* dout, const float* lse, const float* delta, const element* qkv,
                                 float* sums, const Tile* tiles, const KeyTile* key_tiles, const u32* readers, u32 n_heads,
                                 u32 n_kv_heads, u32 head_dim, u32 window) {
    SharedMemory memory;
    Shared<element> q = memory.take<element>(TILE * LD), d_o = memory.take<element>(TILE * LD);
    Shared<element> k = memory.take<element>(KEYS * LD), v = memory.take<element>(KEYS * LD);
    Shared<float> tile_lse = memory.take<float>(TILE), tile_delta = memory.take<float>(TILE);
    Shared<u32> tile_position = memory.take<u32>(TILE);
    const u32 group = n_heads / n_kv_heads, q_width = n_heads * head_dim, width = q_width + 2 * n_kv_heads * head_dim;
    const u32 warp_row = threadIdx.x / WARP * 16;
    const KeyTile own = key_tiles[blockIdx.x];
    // The keys are rows of one segment, which is what a tile of queries with one head is.
    const Tile rows = {own.row, own.position, 0, 0, own.keys};
    const u64 k_column = q_width + blockIdx.y * head_dim, v_column = k_column + n_kv_heads * head_dim;
    stage_queries<KEYS>(k, qkv + q_width, width, rows, 1, head_dim);
    stage_queries<KEYS>(v, qkv + q_width + n_kv_heads * head_dim, width, rows, 1, head_dim);
    async_commit();

    Accumulator dk[HEAD_DIM / 8], dv[HEAD_DIM / 8];
    for (u32 reader = own.first; reader < own.first + own.readers; reader++) {
        const Tile tile = tiles[readers[reader]];
        const u32 last = tile.position + (tile.head + tile.queries - 1) / group;
        if (last < own.position || tile.position >= u64(own.position) + own.keys - 1 + window) continue;
        stage_queries<TILE>(q, qkv, width, tile, group, head_dim);
        stage_queries<TILE>(d_o, dout, q_width, tile, group, head_dim);
        async_commit();
        for (u32 i = threadIdx.x; i < TILE; i += THREADS) {
            const Query query = query_of(tile, i, group);
            const u64 at = u64(query.row) * n_heads + query.head;
            tile_lse[i] = i < tile.queries ? lse[at] : 0.0f;
            tile_delta[i] = i < tile.queries ? delta[at] : 0.0f;
            tile_position[i] = query.position;
        }
        async_wait<0>();
        __syncthreads();
#pragma unroll 1 // dK and dV leave no registers for more at once
        for (int j = 0; j < TILE / 16; j++) {
            Accumulator p[2], ds[2]; // transposed: rows are keys
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 at = j * 16 + half * 8;
                const Accumulator s = dot_rows(k + warp_row * LD, q + at * LD), dp = dot_rows(v + warp_row * LD, d_o + at * LD);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 query = at + accumulator_column(i), key = own.position + warp_row + accumulator_row(i);
                    const bool seen = sees(tile_position[query], key, window);
                    p[half].v[i] = seen ? exp2f((s.v[i] - tile_lse[query]) * LOG2E) : 0.0f;
                    ds[half].v[i] = p[half].v[i] * (dp.v[i] - tile_delta[query]);
                }
            }
            add_product(dv, to_fragment(p[0], p[1]), d_o + j * 16 * LD);
            add_product(dk, to_fragment(ds[0], ds[1]), q + j * 16 * LD);
        }
        __syncthreads();
    }
    async_wait<0>(); // a piece of which no query sees any of the keys has not waited for them
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const u32 i = warp_row + accumulator_row(2 * row);
        if (i >= own.keys) continue;
        if (own.sums == WHOLE) {
            element* to = dqkv + u64(own.row + i) * width;
            store_row(to + k_column, dk, row, 1.0f, head_dim);
            store_row(to + v_column, dv, row, 1.0f, head_dim);
        } else {
            float* to = sums + sums_of(own.sums + i, n_kv_heads);
            store_sums(to, dk, row);
            store_sums(to + HEAD_DIM, dv, row);
        }
    }
}

// Keys whose readers were cut into pieces: rows of sums from `first` on, `keys` of them for each piece.
struct Pieces {
    u32 row, keys, first, pieces;
};

// dK and dV of a tile of keys from the sums of its pieces.
//
// Work:          a block owns a tile of up to 64 keys of one key head, a thread every 128th of its numbers
// Launch:        grid (tiles in pieces, n_kv_heads), 128 threads; shared memory: none
// Determinism:   pieces are added in the order of the list of readers
// Bytes moved:   4 for each number and piece, element a number
KERNEL(THREADS) attention_bwd_add(element* dqkv, const float* sums, const Pieces* tiles, u32 n_heads, u32 n_kv_heads, u32 head_dim) {
    const Pieces own = tiles[blockIdx.x];
    const u32 q_width = n_heads * head_dim, kv_width = n_kv_heads * head_dim;
    for (u32 at = threadIdx.x; at < 2 * own.keys * head_dim; at += THREADS) {
        const u32 i = at / (2 * head_dim), which = at / head_dim % 2, column = at % head_dim; // which: dK, dV
        float sum = 0.0f;
        for (u32 piece = 0; piece < own.pieces; piece++) {
            sum += sums[sums_of(own.first + piece * own.keys + i, n_kv_heads) + which * HEAD_DIM + column];
        }
        dqkv[u64(own.row + i) * (q_width + 2 * kv_width) + q_width + which * kv_width + blockIdx.y * head_dim + column] = to_element(sum);
    }
}
