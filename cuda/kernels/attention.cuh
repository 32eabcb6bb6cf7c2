// What the kernels of attention share: tiles of queries, where keys lie, and softmax by key blocks. CPU twin: models/src/ops/attention.
//
// A token's row holds its q of all heads (already scaled by 1/√head_dim), then its k of all key heads, then its v of all key heads.
// HEAD_DIM is head_dim rounded up to a width that the kernels are written for; columns beyond head_dim are zeros in shared memory.
//
// Softmax goes by key blocks of 64 positions counted from the root of a path, never from where a segment or a prompt begins:
//
//   of a block     m = max s,  p = exp(s − m),  l = Σ p,  o = p · V       by `scores`, `softmax`, `weigh`
//   of a row       M' = max(M, m),  L' = L exp(M − M') + l exp(m − M'),  O' likewise       by `fold`, block after block
//
// What comes of a block depends on the query and on the block's keys alone, and blocks are folded in the order of their positions.
// So training, prefill and decoding, packed or alone, with a shared or an own prefix give the same bits. A block of which a row sees
// nothing has m = −∞, l = 0, o = 0 and changes no bit of that row: exp(0) = 1 and exp(−∞) = 0 exactly.

#define KEYS 64                            // positions in a key block
#define LD (HEAD_DIM + 8)                  // distance of rows in shared memory; the eight are against bank conflicts
#define PIECE (16 / u32(sizeof(element)))  // elements in 16 bytes
#define LOG2E 1.44269504f
#define INF __uint_as_float(0x7f800000u)

// Consecutive query rows of a segment. A query row is a token and one of the `group` query heads that share a key head; they are
// counted token by token, so that all heads of a group use the keys that a block has loaded.
struct Tile {
    u32 row, position; // of the first token
    u32 path;          // where the rows of its path begin in the table
    u32 head;          // first query row's head, counted within the group
    u32 queries;       // number of query rows
};

struct Query {
    u32 row, head, position;
};

DEVICE Query query_of(const Tile& tile, u32 i, u32 group) {
    const u32 pair = tile.head + i;
    return Query{tile.row + pair / group, blockIdx.y * group + pair % group, tile.position + pair / group};
}

// Whether a query sees a key: the keys up to its own position, at most `window` of them.
DEVICE bool sees(u32 own, u32 key, u32 window) { return key <= own && own - key < window; }

// Key blocks that some query of a tile sees, and the number of keys up to the last query's own.
struct Span {
    u32 first, end, keys;
};

DEVICE Span span_of(const Tile& tile, u32 group, u32 window) {
    const u32 keys = tile.position + (tile.head + tile.queries - 1) / group + 1, own = tile.position + 1;
    return Span{(own > window ? own - window : 0) / KEYS, (keys + KEYS - 1) / KEYS, keys};
}

// ------------------------------------------------------------------------------------------------------- to shared memory

// Whether rows at this distance, and the heads in them, begin at multiples of 16 bytes.
DEVICE bool in_pieces(const element* p, u32 stride, u32 head_dim) {
    return (reinterpret_cast<u64>(p) | u64(stride) * sizeof(element) | u64(head_dim) * sizeof(element)) % 16 == 0;
}

// Elements column .. column + PIECE of a row of head_dim elements; zeros beyond it, and where there is no row.
DEVICE void stage_piece(Shared<element> to, const element* row, u32 column, u32 head_dim, bool pieces) {
    if (row != nullptr && pieces && column < head_dim) {
        async_copy16(to, row + column);
    } else {
#pragma unroll
        for (u32 j = 0; j < PIECE; j++) to[j] = row != nullptr && column + j < head_dim ? row[column + j] : to_element(0.0f);
    }
}

// The head's columns of a tile's query rows: x is q, or dO. TILE rows, zeros beyond the last query.
template <u32 TILE>
DEVICE void stage_queries(Shared<element> to, const element* x, u32 stride, const Tile& tile, u32 group, u32 head_dim) {
    const bool pieces = in_pieces(x, stride, head_dim);
    const u32 across = HEAD_DIM / PIECE;
    for (u32 i = threadIdx.x; i < TILE * across; i += blockDim.x) {
        const u32 r = i / across, column = i % across * PIECE;
        const Query query = query_of(tile, r, group);
        const element* row = r < tile.queries ? x + (u64(query.row) * stride + query.head * head_dim) : nullptr;
        stage_piece(to + (r * LD + column), row, column, head_dim, pieces);
    }
}

// The keys and values of one key head. Position p of a path lies in row (table[path + (p >> shift)] << shift) + p % (1 << shift):
// with shift 0 the table names packed rows, with more it names pages of a cache.
struct Keys {
    const element* k; // of row 0
    const element* v;
    u32 stride;
    const u32* pages; // of the path
    u32 shift, head_dim;
};

DEVICE Keys keys_of(const element* kv, u32 stride, const u32* table, u32 shift, const Tile& tile, u32 n_kv_heads, u32 head_dim) {
    const element* k = kv + blockIdx.y * head_dim;
    return Keys{k, k + n_kv_heads * head_dim, stride, table + tile.path, shift, head_dim};
}

// Keys and values of a key block; zeros from position `end` on.
DEVICE void stage_keys(Shared<element> k, Shared<element> v, const Keys& keys, u32 block, u32 end) {
    const bool pieces = in_pieces(keys.k, keys.stride, keys.head_dim);
    const u32 across = HEAD_DIM / PIECE;
    for (u32 i = threadIdx.x; i < KEYS * across; i += blockDim.x) {
        const u32 r = i / across, column = i % across * PIECE, position = block * KEYS + r;
        u64 at = 0;
        if (position < end) {
            const u32 page = keys.pages[position >> keys.shift];
            at = ((u64(page) << keys.shift) + (position & ((1u << keys.shift) - 1))) * keys.stride;
        }
        stage_piece(k + (r * LD + column), position < end ? keys.k + at : nullptr, column, keys.head_dim, pieces);
        stage_piece(v + (r * LD + column), position < end ? keys.v + at : nullptr, column, keys.head_dim, pieces);
    }
}

// ------------------------------------------------------------------------------------------------------------ of one block
//
// A warp has 16 rows; of an Accumulator's four numbers a lane has two in each of two rows: v[i] is in row i / 2 of the lane's two.

// The 16 rows at `rows` as left operand, over the head's width.
DEVICE void load_rows(FragmentA (&a)[HEAD_DIM / 16], Shared<element> rows) {
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) a[d] = load_a(rows + d * 16, LD);
}

// s = q · kᵀ for the eight keys at `k`, one chain over the head's width.
DEVICE Accumulator scores(const FragmentA (&q)[HEAD_DIM / 16], Shared<element> k) {
    Accumulator s;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) mma(s, q[d], load_b(k + d * 16, LD));
    return s;
}

// The scores of eight keys, the first at position `key`, to −∞ where the lane's two rows, at the positions `own`, do not see them.
DEVICE void mask(Accumulator& s, u32 key, const u32 (&own)[2], u32 window) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!sees(own[i / 2], key + accumulator_column(i), window)) s.v[i] = -INF;
    }
}

// exp(x − reference), 0 for x = −∞ whatever the reference.
DEVICE float exp_from(float x, float reference) { return exp2f((x - (reference == -INF ? 0.0f : reference)) * LOG2E); }

// Scores become p = exp(s − m); m and l = Σ p of the lane's two rows. A lane sums its own keys upwards, then the four lanes are added.
DEVICE void softmax(Accumulator (&s)[KEYS / 8], float (&m)[2], float (&l)[2]) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = -INF, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) top = fmaxf(top, fmaxf(s[j].v[2 * row], s[j].v[2 * row + 1]));
        m[row] = quad_max(top);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int i = 2 * row; i < 2 * row + 2; i++) sum += s[j].v[i] = exp_from(s[j].v[i], m[row]);
        }
        l[row] = quad_sum(sum);
    }
}

// p, rounded, as left operand.
DEVICE void to_fragments(FragmentA (&p)[KEYS / 16], const Accumulator (&s)[KEYS / 8]) {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) p[j] = to_fragment(s[2 * j], s[2 * j + 1]);
}

// o = p · v for the eight columns at `v`, one chain over the block's positions.
DEVICE Accumulator weigh(const FragmentA (&p)[KEYS / 16], Shared<element> v) {
    Accumulator o;
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) mma(o, p[j], load_b_t(v + j * 16 * LD, LD));
    return o;
}

// --------------------------------------------------------------------------------------------------------- block after block

// M and L of a row so far, and what O so far and the new block's o are multiplied by.
struct Folded {
    float top = -INF, sum = 0.0f;
    float before, now;
};

DEVICE void fold(Folded& row, float m, float l) {
    const float top = fmaxf(row.top, m);
    row.before = exp_from(row.top, top);
    row.now = exp_from(m, top);
    row.sum = fmaf(row.sum, row.before, l * row.now);
    row.top = top;
}

DEVICE float fold_number(const Folded& row, float sum, float o) { return fmaf(sum, row.before, o * row.now); }

DEVICE void fold_numbers(const Folded (&rows)[2], Accumulator& sum, const Accumulator& o) {
#pragma unroll
    for (int i = 0; i < 4; i++) sum.v[i] = fold_number(rows[i / 2], sum.v[i], o.v[i]);
}

// p[0], p[1] = x, y rounded, of which n are left in the row.
DEVICE void store2(element* p, float x, float y, u32 n) {
#ifdef ELEMENT_BF16
    if (n >= 2 && reinterpret_cast<u64>(p) % 4 == 0) {
        *reinterpret_cast<u32*>(p) = pack_bf16(x, y);
        return;
    }
#endif
    if (n >= 1) p[0] = to_element(x);
    if (n >= 2) p[1] = to_element(y);
}

// The lane's part of a row of accumulators side by side, numbers 2 · row and 2 · row + 1 of each, times a factor.
template <int N>
DEVICE void store_row(element* p, const Accumulator (&x)[N], int row, float factor, u32 head_dim) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const u32 column = n * 8 + accumulator_column(0);
        if (column < head_dim) store2(p + column, x[n].v[2 * row] * factor, x[n].v[2 * row + 1] * factor, head_dim - column);
    }
}
