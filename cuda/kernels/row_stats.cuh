// What a row of logits comes to at a temperature: the text that head.cu and sampling.cu share, so that training finds the bits that
// tokens were drawn with. CPU twin: models/src/ops/head.rs (RowStats).
//
// A block of THREADS owns a row, and a thread eight neighbouring logits, then eight 8 · THREADS further on, and so forth. Exponentials
// are added over those eight in float and from there on in double: a float sum over a large vocabulary is visibly biased. Threads
// are combined by block_sum. All threads of the block call these functions, and all get the result.

#define THREADS 256
#define LARGEST_FLOAT 3.402823466e38f
#define MINUS_INFINITY __uint_as_float(0xff800000u)

// Of z = logit / temperature.
struct RowStats {
    float temperature;
    float max;       // largest z
    double sum;      // Σ exp(z − max)
    double weighted; // Σ exp(z − max) (z − max)
};

// Numbers that are kept of a row from kernel to kernel: max, sum, weighted, and the sum over the kept set of its token.
#define STATS 4

DEVICE RowStats read_stats(const double* saved, float temperature) { return RowStats{temperature, float(saved[0]), saved[1], saved[2]}; }

DEVICE void save_stats(double* saved, const RowStats& stats, double normaliser) {
    saved[0] = double(stats.max);
    saved[1] = stats.sum;
    saved[2] = stats.weighted;
    saved[3] = normaliser;
}

// e^x for x ≤ 0 with the bits of the CPU (models/src/simd/mod.rs), since a filter that compares weights must keep what it keeps
// there; 0 below −87.3, where the result would not be a normal number.
//
// x = k ln 2 + r with |r| ≤ ln 2 / 2; Taylor polynomial of degree 7 in r, times 2^k.
DEVICE float exp_nonpositive(float x) {
    const float shift = 12582912.0f; // 1.5 · 2^23: adding it rounds to an integer and leaves that in the low bits
    const float shifted = fmaf(x, 1.44269504f, shift), k = shifted - shift;
    const float r = fmaf(k, -1.4286068e-6f, fmaf(k, -0.69314575f, x));
    float p = fmaf(1.0f / 5040.0f, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    // A product, where the CPU adds to the exponent: the same number, and NaN stays NaN.
    return x < -87.3f ? 0.0f : p * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
}

// z − max of a logit. Dividing by 1 changes nothing, so that common case is spared the division.
DEVICE float shifted(const RowStats& stats, float logit) {
    return (stats.temperature == 1.0f ? logit : logit / stats.temperature) - stats.max;
}

// exp(z − max) of a logit in float.
DEVICE float weight(const RowStats& stats, float logit) { return exp_nonpositive(shifted(stats, logit)); }

// Maximum and sums of a row of n logits. `tops` and `sums` hold one number a warp.
DEVICE RowStats row_stats(const float* row, u32 n, float temperature, Shared<float> tops, Shared<double> sums) {
    float top = MINUS_INFINITY;
    for (u32 j = 8 * threadIdx.x; j < n; j += 8 * THREADS) {
        const Eight logit = load8(row + j, n - j);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n - j) top = fmaxf(top, logit.v[i]);
        }
    }
    // Division keeps order: the largest z is that of the largest logit.
    RowStats stats = {temperature, block_max(top, tops) / temperature, 0.0, 0.0};
    double sum = 0.0, weighted = 0.0;
    for (u32 j = 8 * threadIdx.x; j < n; j += 8 * THREADS) {
        const Eight logit = load8(row + j, n - j);
        float run = 0.0f, run_weighted = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n - j) {
                const float d = shifted(stats, logit.v[i]), e = exp_nonpositive(d);
                run += e;
                // A kept-out logit of −∞ has weight 0, and 0 · −∞ must stay 0.
                run_weighted = fmaf(e, fmaxf(d, -LARGEST_FLOAT), run_weighted);
            }
        }
        sum += double(run);
        weighted += double(run_weighted);
    }
    stats.sum = block_sum(sum, sums);
    stats.weighted = block_sum(weighted, sums);
    return stats;
}

// Σ exp(z − max) over n kept ids, ascending.
DEVICE double kept_sum(const RowStats& stats, const float* row, const u32* kept, u32 n, Shared<double> sums) {
    double sum = 0.0;
    for (u32 k = threadIdx.x; k < n; k += THREADS) sum += exp(double(shifted(stats, row[kept[k]])));
    return block_sum(sum, sums);
}

// log p of a token with this logit; `normaliser` is the sum over the distribution that it is drawn from, all tokens or a kept set.
DEVICE float logp_of(const RowStats& stats, float logit, double normaliser) { return float(double(shifted(stats, logit)) - log(normaliser)); }
