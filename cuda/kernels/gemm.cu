// Matrix product: C[m, n] = alpha · A[m, k] · B[k, n], or C = Z + A · B (then alpha is 1); row-major. Z may be C itself: C += A · B.
// CPU twin: models/src/ops/gemm.rs.
//
// It serves where there is no cuBLAS, and where a row must not depend on how many rows there are (`gemm = "invariant"`): an output
// element is one chain over k ascending, in steps of 16 as the tensor cores take them, started from 0 or from what Z holds. The tile
// that it happens to lie in does not reach it, so both tile sizes give equal bits. alpha multiplies the finished sum.
//
//   gemm_nt   A [m, k], B stored [n, k]: x · Wᵀ          gemm_nt_few   the same, for few rows
//   gemm_nn   A [m, k], B stored [k, n]: dy · W          gemm_tn       A stored [k, m], B [k, n]: dyᵀ · x
//
// lda, ldb, ldc are the distances between stored rows; Z's is C's. C is `c` or, when that is null, `c_float`, and Z likewise `z` or
// `z_float`; without Z both are null.
//
// Work:          a block owns a tile of C, a warp WM x WN of it; pieces of A and B, STEP deep in k, pass through shared memory
// Launch:        tiles of n in x, of m in y; 256 threads for 128 x 128, 128 threads for 16 x 64
// Shared memory: STAGES pieces of A and of B, rows padded by 16 bytes so that the 8 rows of a fragment lie in different banks
// Determinism:   see above
// Bytes moved:   A once for each tile of n, B once for each tile of m, C once, Z once

#define STEP 32
#ifdef ELEMENT_BF16
#define STAGES 3
#else
#define STAGES 2
#endif
#define CHUNK (16 / int(sizeof(element)))

// Starts to copy a tile of ROWS x COLUMNS, of which `rows` x `columns` exist, from rows at distance `ld`; the rest becomes zeros.
template <int ROWS, int COLUMNS>
DEVICE void copy_tile(Shared<element> tile, const element* from, u32 ld, int rows, int columns) {
    for (int i = threadIdx.x; i < ROWS * COLUMNS / CHUNK; i += blockDim.x) {
        const int row = i / (COLUMNS / CHUNK), column = i % (COLUMNS / CHUNK) * CHUNK;
        const Shared<element> to = tile + row * (COLUMNS + CHUNK) + column;
        const element* source = from + u64(row) * ld + column;
        if (row < rows && column + CHUNK <= columns && reinterpret_cast<u64>(source) % 16 == 0) {
            async_copy16(to, source);
        } else {
#pragma unroll
            for (int j = 0; j < CHUNK; j++) to[j] = row < rows && column + j < columns ? source[j] : to_element(0.0f);
        }
    }
}

// A piece of op(A), BM rows of m by STEP of k, and of op(B), STEP of k by BN columns of n, in the layout in which they are stored.
template <bool TRANSPOSE_A, bool TRANSPOSE_B, int BM, int BN>
struct Pieces {
    static constexpr int A_ROW = (TRANSPOSE_A ? BM : STEP) + CHUNK, A_SIZE = (TRANSPOSE_A ? STEP : BM) * A_ROW;
    static constexpr int B_ROW = (TRANSPOSE_B ? STEP : BN) + CHUNK, B_SIZE = (TRANSPOSE_B ? BN : STEP) * B_ROW;
};

template <bool TRANSPOSE_A, bool TRANSPOSE_B, int BM, int BN, int WM, int WN>
DEVICE void product(element* c, float* c_float, const element* z, const float* z_float, const element* a, const element* b, int m, int n, int k,
                    u32 lda, u32 ldb, u32 ldc, float alpha) {
    typedef Pieces<TRANSPOSE_A, TRANSPOSE_B, BM, BN> P;
    SharedMemory memory;
    const Shared<element> a_pieces = memory.take<element>(STAGES * P::A_SIZE), b_pieces = memory.take<element>(STAGES * P::B_SIZE);
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int warp = threadIdx.x / WARP, warp_row = warp / (BN / WN) * WM, warp_column = warp % (BN / WN) * WN;

    Accumulator sums[WM / 16][WN / 8];
    if (z || z_float) {
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
#pragma unroll
            for (int j = 0; j < WN / 8; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int row = row0 + warp_row + i * 16 + accumulator_row(e), column = column0 + warp_column + j * 8 + accumulator_column(e);
                    const u64 at = u64(row) * ldc + column;
                    if (row < m && column < n) sums[i][j].v[e] = z ? to_float(z[at]) : z_float[at];
                }
            }
        }
    }

    const int steps = (k + STEP - 1) / STEP;
    const auto copy_step = [&](int step) {
        const int k0 = step * STEP, stage = step % STAGES;
        const Shared<element> a_piece = a_pieces + stage * P::A_SIZE, b_piece = b_pieces + stage * P::B_SIZE;
        if (TRANSPOSE_A) {
            copy_tile<STEP, BM>(a_piece, a + u64(k0) * lda + row0, lda, k - k0, m - row0);
        } else {
            copy_tile<BM, STEP>(a_piece, a + u64(row0) * lda + k0, lda, m - row0, k - k0);
        }
        if (TRANSPOSE_B) {
            copy_tile<BN, STEP>(b_piece, b + u64(column0) * ldb + k0, ldb, n - column0, k - k0);
        } else {
            copy_tile<STEP, BN>(b_piece, b + u64(k0) * ldb + column0, ldb, k - k0, n - column0);
        }
    };
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) copy_step(step);
        async_commit();
    }
    for (int step = 0; step < steps; step++) {
        async_wait<STAGES - 2>();
        // Now the pieces of this step are there for all, and nobody reads those of the step before, which the next copy replaces.
        __syncthreads();
        if (step + STAGES - 1 < steps) copy_step(step + STAGES - 1);
        async_commit();
        const Shared<element> a_piece = a_pieces + step % STAGES * P::A_SIZE, b_piece = b_pieces + step % STAGES * P::B_SIZE;
#pragma unroll
        for (int k0 = 0; k0 < STEP; k0 += 16) {
            FragmentB right[WN / 8];
#pragma unroll
            for (int j = 0; j < WN / 8; j++) {
                const int column = warp_column + j * 8;
                right[j] = TRANSPOSE_B ? load_b(b_piece + column * P::B_ROW + k0, P::B_ROW) : load_b_t(b_piece + k0 * P::B_ROW + column, P::B_ROW);
            }
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
                const int row = warp_row + i * 16;
                const FragmentA left =
                    TRANSPOSE_A ? load_a_t(a_piece + k0 * P::A_ROW + row, P::A_ROW) : load_a(a_piece + row * P::A_ROW + k0, P::A_ROW);
#pragma unroll
                for (int j = 0; j < WN / 8; j++) mma(sums[i][j], left, right[j]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = row0 + warp_row + i * 16 + accumulator_row(e), column = column0 + warp_column + j * 8 + accumulator_column(e);
                const u64 at = u64(row) * ldc + column;
                if (row < m && column < n) {
                    if (c) {
                        c[at] = to_element(alpha * sums[i][j].v[e]);
                    } else {
                        c_float[at] = alpha * sums[i][j].v[e];
                    }
                }
            }
        }
    }
}

KERNEL(256) gemm_nt(element* c, float* c_float, const element* z, const float* z_float, const element* a, const element* b, u32 m, u32 n, u32 k,
                    u32 lda, u32 ldb, u32 ldc, float alpha) {
    product<false, true, 128, 128, 64, 32>(c, c_float, z, z_float, a, b, m, n, k, lda, ldb, ldc, alpha);
}

KERNEL(128) gemm_nt_few(element* c, float* c_float, const element* z, const float* z_float, const element* a, const element* b, u32 m, u32 n, u32 k,
                        u32 lda, u32 ldb, u32 ldc, float alpha) {
    product<false, true, 16, 64, 16, 16>(c, c_float, z, z_float, a, b, m, n, k, lda, ldb, ldc, alpha);
}

KERNEL(256) gemm_nn(element* c, float* c_float, const element* z, const float* z_float, const element* a, const element* b, u32 m, u32 n, u32 k,
                    u32 lda, u32 ldb, u32 ldc, float alpha) {
    product<false, false, 128, 128, 64, 32>(c, c_float, z, z_float, a, b, m, n, k, lda, ldb, ldc, alpha);
}

KERNEL(256) gemm_tn(element* c, float* c_float, const element* z, const float* z_float, const element* a, const element* b, u32 m, u32 n, u32 k,
                    u32 lda, u32 ldb, u32 ldc, float alpha) {
    product<true, false, 128, 128, 64, 32>(c, c_float, z, z_float, a, b, m, n, k, lda, ldb, ldc, alpha);
}
