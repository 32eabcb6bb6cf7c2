// From rows of logits to tokens: temperature, top-k, top-p, min-p, and a draw from a uniform number. CPU twin: models/src/sampler.rs.
//
// A step of decoding is up to six kernels over the same rows, logits [rows, vocab] in float:
//   uniform        the uniform numbers, from the CPU's counter-based generator (models/src/random.rs)
//   sample_stats   what each row comes to, and whether it is a distribution at all
//   sample_filter  with top-k or top-p: up to which edge the tokens of a row are kept
//   sample_keep    with any filter: the kept ids, ascending
//   sample_draw    the token and its log-probability under what it was drawn from
//   kept_lists     for the host, the kept ids of all rows in one list
// Temperature 0 is sample_greedy alone. A row that is refused has a code, and the kernels after leave it alone.
//
// Work:          a block owns a row; a thread eight neighbouring logits, then eight 8 · THREADS further on (see row_stats.cuh); in
//                sample_draw half a warp owns a block of 64 tokens
// Launch:        256 threads, rows blocks; uniform: a thread a row
// Shared memory: sample_filter 32 KiB of bins, which its threads never share; sample_draw a double for each 64 tokens
// Determinism:   no sort and no atomics: counts and weights are summed in fixed trees, ties go by id
// Bytes moved:   4 a logit for each of sample_stats, sample_keep and sample_draw, and for each pass of sample_filter: up to 8 for top-k and 9
//                for top-p, of which the cache serves all but the first as long as the rows at work fit into it

#define REFUSED_NAN 1
#define REFUSED_INFINITY 2
#define REFUSED_EMPTY 3
#define REFUSED_TEMPERATURE 4

// ---------------------------------------------------------------------------------------------------------- random numbers

DEVICE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// u[r] in [0, 1) with 53 bits: the number of key keys[r] at position positions[r].
KERNEL(THREADS) uniform(double* u, const u64* keys, const u64* positions, u32 rows) {
    const u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    const u64 bits = mix(keys[row] + positions[row] * 0x9e3779b97f4a7c15ull);
    u[row] = double(bits >> 11) * (1.0 / 9007199254740992.0);
}

// ------------------------------------------------------------------------------------------------------------------ a row

// The smallest x of the block, in every thread. `least` holds one T a warp.
template <class T>
DEVICE T block_min(T x, Shared<T> least) {
    for (int distance = 16; distance > 0; distance /= 2) x = min(x, __shfl_xor_sync(FULL_WARP, x, distance));
    if (threadIdx.x % WARP == 0) least[threadIdx.x / WARP] = x;
    __syncthreads();
    T smallest = least[0];
    for (u32 warp = 1; warp < THREADS / WARP; warp++) smallest = min(smallest, least[warp]);
    __syncthreads();
    return smallest;
}

// A number that sorts the larger logit first; adding zero makes the two zeros equal.
DEVICE u32 order(float logit) {
    const u32 bits = __float_as_uint(logit + 0.0f);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}
DEVICE float logit_of(u32 order) { return __uint_as_float(order >> 31 ? order : ~order & 0x7fffffffu); }

#define ORDER_OF_MINUS_INFINITY 0xff800000u
#define NO_ID 0xffffffffu

DEVICE bool is_refused(float logit) { return !(logit < -MINUS_INFINITY); }

// The lowest id whose logit `is` one of a kind, else NO_ID.
template <class Is>
DEVICE u32 first_that(const float* row, u32 n, Is is, Shared<u32> least) {
    u32 first = NO_ID;
    for (u32 j = threadIdx.x; j < n; j += THREADS) {
        if (is(row[j])) first = min(first, j);
    }
    return block_min(first, least);
}

// The lowest id whose logit is NaN or plus infinity, else NO_ID.
DEVICE u32 first_refused(const float* row, u32 n, Shared<u32> least) {
    return first_that(row, n, [](float logit) { return is_refused(logit); }, least);
}

// Why a row with this first refused id (or none) is no distribution.
DEVICE u32 refusal(const float* row, u32 first) {
    if (first == NO_ID) return REFUSED_EMPTY;
    return row[first] == -MINUS_INFINITY ? REFUSED_INFINITY : REFUSED_NAN;
}

// Statistics of a row, its code (0 is good) with the refused id, and as many kept tokens as there are, should no filter follow.
KERNEL(THREADS) sample_stats(double* saved, u32* ids, u32* kept_len, u32* codes, const float* logits, float temperature, u32 vocab) {
    SharedMemory memory;
    Shared<float> tops = memory.take<float>(THREADS / WARP);
    Shared<double> sums = memory.take<double>(THREADS / WARP);
    Shared<u32> least = memory.take<u32>(THREADS / WARP);
    const u32 row = blockIdx.x;
    logits += u64(row) * vocab;
    const RowStats stats = row_stats(logits, vocab, temperature, tops, sums);
    // One NaN makes the sum NaN, and so does an infinite maximum of either sign: ∞ − ∞.
    const bool good = stats.sum >= 0.0;
    const u32 first = good ? NO_ID : first_refused(logits, vocab, least);
    u32 code = good ? 0 : refusal(logits, first);
    if (code == REFUSED_EMPTY) {
        // Unless a logit was finite before it was divided.
        if (first_that(logits, vocab, [](float logit) { return logit > MINUS_INFINITY; }, least) != NO_ID) code = REFUSED_TEMPERATURE;
    }
    if (threadIdx.x == 0) {
        save_stats(saved + u64(row) * STATS, stats, stats.sum);
        ids[row] = first;
        kept_len[row] = good ? vocab : 0;
        codes[row] = code;
    }
}

// Temperature 0: the lowest id of the largest logit, alone, with probability 1.
KERNEL(THREADS) sample_greedy(u32* ids, float* logp, u32* kept, u32* kept_len, u32* codes, const float* logits, u32 vocab, u32 capacity) {
    SharedMemory memory;
    Shared<u32> least = memory.take<u32>(THREADS / WARP);
    Shared<u64> keys = memory.take<u64>(THREADS / WARP);
    const u32 row = blockIdx.x;
    logits += u64(row) * vocab;
    u64 key = ~0ull;
    for (u32 j = threadIdx.x; j < vocab; j += THREADS) key = min(key, u64(order(logits[j])) << 32 | j);
    key = block_min(key, keys);
    const u32 first = first_refused(logits, vocab, least), best = u32(key);
    const bool good = first == NO_ID && key >> 32 < ORDER_OF_MINUS_INFINITY;
    if (threadIdx.x == 0) {
        ids[row] = good ? best : first;
        logp[row] = 0.0f;
        kept[u64(row) * capacity] = best;
        kept_len[row] = good ? 1 : 0;
        codes[row] = good ? 0 : refusal(logits, first);
    }
}

// ------------------------------------------------------------------------------------------------------------ top-k, top-p
//
// An edge cuts a row where it is sorted by logit, ties by id: kept are the tokens whose (order, rank among the tokens of their very
// logit) is below it, as one number of 64 bits.

#define EDGE_OF_FINITE (u64(ORDER_OF_MINUS_INFINITY) << 32)
#define DIGIT 4
#define BINS (1 << DIGIT)

// The edge behind all orders that begin with `prefix` and go on with any `bits` bits, or `limit` if that comes earlier.
DEVICE u64 edge_behind(u32 prefix, int bits, u64 limit) {
    const u64 next = (u64(prefix) + 1) << bits;
    return next > limit >> 32 ? limit : next << 32;
}

// The edge of the shortest sorted prefix of what `limit` keeps whose tokens measure up to `wanted`; `limit` if there is none.
//
// A search by digits of the order from the top: each pass sums the measure of every value of the next digit, among the tokens that
// begin with the digits so far, and finds the value in which `wanted` is reached. Each thread sums into bins of its own,
// bins[value · THREADS + thread].
template <class Measure>
DEVICE u64 edge_at(const float* row, u32 n, u64 limit, double wanted, Measure measure, Shared<double> bins, Shared<double> totals) {
    u32 prefix = 0;
    double before = 0.0;
    for (int shift = 32 - DIGIT; shift >= 0; shift -= DIGIT) {
        for (u32 bin = 0; bin < BINS; bin++) bins[bin * THREADS + threadIdx.x] = 0.0;
        for (u32 j = 8 * threadIdx.x; j < n; j += 8 * THREADS) {
            const Eight logit = load8(row + j, n - j);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const u32 place = order(logit.v[i]);
                if (i < n - j && place >> shift >> DIGIT == prefix && u64(place) << 32 < limit) {
                    bins[(place >> shift) % BINS * THREADS + threadIdx.x] += measure(logit.v[i]);
                }
            }
        }
        __syncthreads();
        for (u32 bin = threadIdx.x / WARP; bin < BINS; bin += THREADS / WARP) {
            double sum = 0.0;
            for (u32 t = threadIdx.x % WARP; t < THREADS; t += WARP) sum += bins[bin * THREADS + t];
            sum = warp_sum(sum);
            if (threadIdx.x % WARP == 0) totals[bin] = sum;
        }
        __syncthreads();
        u32 bin = 0;
        while (bin < BINS && !(totals[bin] > 0.0 && before + totals[bin] >= wanted)) before += totals[bin++];
        // Nothing reaches it: in the first pass because there is too little, later by rounding.
        if (bin == BINS) return edge_behind(prefix, shift + DIGIT, limit);
        prefix = prefix << DIGIT | bin;
        if (before + totals[bin] == wanted) return edge_behind(prefix, shift, limit);
    }
    // Of the tokens of this very logit, the fewest that reach it.
    const double each = measure(logit_of(prefix));
    double ties = ceil((wanted - before) / each);
    if (fma(ties - 1.0, each, before) >= wanted) ties -= 1.0;
    return min(limit, u64(prefix) << 32 | u32(fmin(fmax(ties, 1.0), 4294967295.0)));
}

// top_k 0 and top_p 1 are off.
KERNEL(THREADS) sample_filter(u64* edges, const double* saved, const u32* codes, const float* logits, float temperature, u32 top_k,
                              float top_p, u32 vocab) {
    SharedMemory memory;
    Shared<double> bins = memory.take<double>(BINS * THREADS);
    Shared<double> totals = memory.take<double>(BINS);
    Shared<double> sums = memory.take<double>(THREADS / WARP);
    const u32 row = blockIdx.x;
    if (codes[row] != 0) return;
    logits += u64(row) * vocab;
    const RowStats stats = read_stats(saved + u64(row) * STATS, temperature);
    u64 edge = EDGE_OF_FINITE;
    if (top_k > 0) edge = edge_at(logits, vocab, edge, double(top_k), [](float) { return 1.0; }, bins, totals);
    if (top_p < 1.0f) {
        // Of what top-k left: its own weight is the whole.
        double sum = 0.0;
        for (u32 j = 8 * threadIdx.x; j < vocab; j += 8 * THREADS) {
            const Eight logit = load8(logits + j, vocab - j);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (i < vocab - j && order(logit.v[i]) < edge >> 32) sum += double(weight(stats, logit.v[i]));
            }
        }
        sum = block_sum(sum, sums);
        if (u32(edge) > 0) sum += double(u32(edge)) * double(weight(stats, logit_of(u32(edge >> 32))));
        edge = edge_at(logits, vocab, edge, double(top_p) * sum, [=](float logit) { return double(weight(stats, logit)); }, bins, totals);
    }
    if (threadIdx.x == 0) edges[row] = edge;
}

// ------------------------------------------------------------------------------------------------------------ the kept set

// Sum of x over the threads below this one, and over all. `sums` holds one number a warp.
DEVICE u32 block_scan(u32 x, u32& total, Shared<u32> sums) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 sum = x;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const u32 below = __shfl_up_sync(FULL_WARP, sum, distance);
        if (lane >= distance) sum += below;
    }
    if (lane == WARP - 1) sums[warp] = sum;
    __syncthreads();
    u32 below = sum - x;
    total = 0;
    for (u32 w = 0; w < THREADS / WARP; w++) {
        if (w < warp) below += sums[w];
        total += sums[w];
    }
    __syncthreads();
    return below;
}

// kept[row · capacity ..] = the ids below the row's edge (all finite ones if edges is null) of at least min_p times the largest
// probability, ascending; kept_len their number.
KERNEL(THREADS) sample_keep(u32* kept, u32* kept_len, const double* saved, const u32* codes, const u64* edges, const float* logits,
                            float temperature, float min_p, u32 vocab, u32 capacity) {
    SharedMemory memory;
    Shared<u32> sums = memory.take<u32>(THREADS / WARP);
    const u32 row = blockIdx.x;
    if (codes[row] != 0) return;
    logits += u64(row) * vocab;
    kept += u64(row) * capacity;
    const RowStats stats = read_stats(saved + u64(row) * STATS, temperature);
    const u64 edge = edges ? edges[row] : EDGE_OF_FINITE;
    const u32 last = u32(edge >> 32), ties = u32(edge);
    u32 surely = 0, tied = 0; // tokens before these of an order below the edge's, and of its very order
    for (u32 start = 0; start < vocab; start += 8 * THREADS) {
        const u32 j = start + 8 * threadIdx.x;
        const int n = int(vocab) - int(j);
        const Eight logit = load8(logits + j, n);
        u32 below = 0, equal = 0, count = 0; // a bit for each of the eight; how many of the first kind, of the second from bit 16 on
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 place = order(logit.v[i]);
            if (i < n && place <= last && (min_p <= 0.0f || weight(stats, logit.v[i]) >= min_p)) {
                below |= u32(place < last) << i;
                equal |= u32(place == last) << i;
                count += place < last ? 1 : 1 << 16;
            }
        }
        u32 all;
        const u32 before = block_scan(count, all, sums);
        u32 s = surely + before % (1 << 16), t = tied + (before >> 16);
        for (u32 i = 0; i < 8; i++) {
            const u32 at = s + min(t, ties);
            const bool is_below = below >> i & 1, is_equal = equal >> i & 1;
            if ((is_below || (is_equal && t < ties)) && at < capacity) kept[at] = j + i;
            s += is_below, t += is_equal;
        }
        surely += all % (1 << 16), tied += all >> 16;
    }
    if (threadIdx.x == 0) kept_len[row] = surely + min(tied, ties);
}

// ---------------------------------------------------------------------------------------------------------------- the draw

#define BLOCK 64 // tokens whose weights are summed together before the search walks on, and blocks that are

// The tokens that a row is drawn from: n ids, or all tokens when `ids` is null.
struct Choice {
    RowStats stats;
    const float* row;
    const u32* ids;
    u32 n;
};
DEVICE u32 id_at(const Choice& choice, u32 k) { return choice.ids ? choice.ids[k] : k; }
DEVICE float weight_at(const Choice& choice, u32 k) { return k < choice.n ? weight(choice.stats, choice.row[id_at(choice, k)]) : 0.0f; }

// sums[b] = the weight of block b. Half a warp sums four runs of 16 in float, then its lanes in double: the CPU's order and bits.
DEVICE void block_weights(Shared<double> sums, const Choice& choice, u32 blocks) {
    const u32 lane = threadIdx.x % 16;
#pragma unroll 4
    for (u32 first = 0; first < blocks; first += THREADS / 16) {
        const u32 block = first + threadIdx.x / 16;
        float run = 0.0f;
#pragma unroll
        for (u32 i = 0; i < BLOCK / 16; i++) run += weight_at(choice, block * BLOCK + 16 * i + lane);
        double sum = double(run);
        for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
        if (lane == 0 && block < blocks) sums[block] = sum;
    }
    __syncthreads();
}

// Index among the tokens at which the cumulative probability passes u: over runs of blocks, then blocks, then tokens. All threads
// walk the same way. The last run and the last block are taken without a comparison, should rounding have carried `rest` up to the end.
DEVICE u32 search(const Choice& choice, double u, Shared<double> sums, Shared<double> runs, Shared<float> weights) {
    const u32 blocks = (choice.n + BLOCK - 1) / BLOCK, run_count = (blocks + BLOCK - 1) / BLOCK;
    block_weights(sums, choice, blocks);
    for (u32 run = threadIdx.x; run < run_count; run += THREADS) {
        double sum = 0.0;
        for (u32 block = run * BLOCK; block < min(blocks, (run + 1) * BLOCK); block++) sum += sums[block];
        runs[run] = sum;
    }
    __syncthreads();
    double total = 0.0;
    for (u32 run = 0; run < run_count; run++) total += runs[run];
    double rest = u * total;
    u32 run = 0;
    while (run + 1 < run_count && rest >= runs[run]) rest -= runs[run++];
    u32 block = run * BLOCK;
    const u32 end = min(blocks, block + BLOCK);
    while (block + 1 < end && rest >= sums[block]) rest -= sums[block++];
    if (threadIdx.x < BLOCK) weights[threadIdx.x] = weight_at(choice, block * BLOCK + threadIdx.x);
    __syncthreads();
    u32 found = NO_ID;
    for (u32 i = 0; i < BLOCK && rest >= 0.0; i++) {
        if (weights[i] > 0.0f) {
            found = block * BLOCK + i;
            rest -= double(weights[i]);
        }
    }
    // A block without weight is only met at an end: then the last token with weight before it was meant.
    for (u32 k = block * BLOCK; found == NO_ID && k > 0; k--) {
        if (weight_at(choice, k - 1) > 0.0f) found = k - 1;
    }
    return found == NO_ID ? 0 : found;
}

// Draws with u[row] in [0, 1) from the row's kept ids, or from all tokens when it kept all of them.
KERNEL(THREADS) sample_draw(u32* ids, float* logp, const double* saved, const u32* kept, const u32* kept_len, const u32* codes,
                            const float* logits, const double* u, float temperature, u32 vocab, u32 capacity) {
    SharedMemory memory;
    const u32 all_blocks = (vocab + BLOCK - 1) / BLOCK;
    Shared<double> sums = memory.take<double>(all_blocks);
    Shared<double> runs = memory.take<double>((all_blocks + BLOCK - 1) / BLOCK);
    Shared<float> weights = memory.take<float>(BLOCK);
    Shared<double> tree = memory.take<double>(THREADS / WARP);
    const u32 row = blockIdx.x, n = kept_len[row];
    if (codes[row] != 0) return;
    const RowStats stats = read_stats(saved + u64(row) * STATS, temperature);
    const u32* list = n < vocab ? kept + u64(row) * capacity : nullptr;
    const Choice choice = {stats, logits + u64(row) * vocab, list, n};
    const u32 id = id_at(choice, search(choice, u[row], sums, runs, weights));
    // The head's own functions, since training must find the same bits.
    const double normaliser = list ? kept_sum(stats, choice.row, list, n, tree) : stats.sum;
    if (threadIdx.x == 0) {
        ids[row] = id;
        logp[row] = logp_of(stats, choice.row[id], normaliser);
    }
}

// ----------------------------------------------------------------------------------------------------------------- the lists

// How many ids of a row the host asks for: none when it kept all tokens.
DEVICE u32 listed(u32 len, u32 vocab, u32 capacity) { return len < vocab ? min(len, capacity) : 0; }

// list = the kept ids of row after row. Each block counts for itself what the rows before its own have.
KERNEL(THREADS) kept_lists(u32* list, const u32* kept, const u32* kept_len, u32 vocab, u32 capacity) {
    SharedMemory memory;
    Shared<u32> sums = memory.take<u32>(THREADS / WARP);
    const u32 row = blockIdx.x, n = listed(kept_len[row], vocab, capacity);
    u32 count = 0, start;
    for (u32 r = threadIdx.x; r < row; r += THREADS) count += listed(kept_len[r], vocab, capacity);
    block_scan(count, start, sums);
    for (u32 k = threadIdx.x; k < n; k += THREADS) list[start + k] = kept[u64(row) * capacity + k];
}
