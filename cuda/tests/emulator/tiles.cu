// Products by tiles, for a plain product to be compared with.

#define LD 24

// A tile of 16 rows of x, transposed or not, with rows LD apart.
DEVICE void fill(Shared<element> tile, const element* x, u32 rows, u32 columns, u32 transposed) {
    for (u32 i = threadIdx.x; i < rows * columns; i += WARP) {
        const u32 row = i / columns, column = i % columns;
        if (transposed) tile[column * LD + row] = x[i];
        else tile[row * LD + column] = x[i];
    }
    __syncwarp();
}

DEVICE void store(float* c, const Accumulator& sum, u32 ld) {
    for (int i = 0; i < 4; i++) c[accumulator_row(i) * ld + accumulator_column(i)] = sum.v[i];
}

// c [16, 8] = a [16, 16] · b [16, 8] + a · b, the two in one chain.
KERNEL(32) product(float* c, const element* a, const element* b, u32 transpose_a, u32 transpose_b) {
    SharedMemory memory;
    Shared<element> tile_a = memory.take<element>(16 * LD), tile_b = memory.take<element>(16 * LD);
    fill(tile_a, a, 16, 16, transpose_a);
    fill(tile_b, b, 16, 8, transpose_b);
    Accumulator sum;
    for (int round = 0; round < 2; round++) {
        mma(sum, transpose_a ? load_a_t(tile_a, LD) : load_a(tile_a, LD), transpose_b ? load_b(tile_b, LD) : load_b_t(tile_b, LD));
    }
    store(c, sum, 8);
}

// c [16, 8] = round(a · [b, b']) · v with b, b' [16, 8] and v [16, 8].
KERNEL(32) product_of_product(float* c, const element* a, const element* b, const element* right, const element* v) {
    SharedMemory memory;
    Shared<element> tile_a = memory.take<element>(16 * LD), tile_b = memory.take<element>(16 * LD);
    Shared<element> tile_right = memory.take<element>(16 * LD), tile_v = memory.take<element>(16 * LD);
    fill(tile_a, a, 16, 16, 0);
    fill(tile_b, b, 16, 8, 0);
    fill(tile_right, right, 16, 8, 0);
    fill(tile_v, v, 16, 8, 0);
    Accumulator low, high, sum;
    mma(low, load_a(tile_a, LD), load_b_t(tile_b, LD));
    mma(high, load_a(tile_a, LD), load_b_t(tile_right, LD));
    mma(sum, to_fragment(low, high), load_b_t(tile_v, LD));
    store(c, sum, 8);
}
