// Kernels with nothing wrong in them, near to what is: none of these may be a fault.

#define THREADS 96

KERNEL(THREADS) sums(double* y, const float* x) {
    SharedMemory memory;
    Shared<float> floats = memory.take<float>(THREADS / WARP);
    Shared<double> doubles = memory.take<double>(THREADS / WARP);
    const float own = x[blockIdx.x * THREADS + threadIdx.x];
    const float sum = block_sum(own, floats), top = block_max(own, floats);
    const double exact = block_sum(double(own), doubles);
    if (threadIdx.x == THREADS - 1) {
        y[3 * blockIdx.x] = sum;
        y[3 * blockIdx.x + 1] = top;
        y[3 * blockIdx.x + 2] = exact;
    }
}

// y [columns, rows] = x [rows, columns] transposed, by tiles of 32 x 32 in blocks of 3 x 32 threads.
KERNEL(THREADS) transpose(float* y, const float* x, u32 rows, u32 columns) {
    SharedMemory memory;
    Shared<float> tile = memory.take<float>(32 * 33);
    const u32 column = blockIdx.x * 32, row = blockIdx.y * 32, lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < 32; i += 3) {
        if (row + i < rows && column + lane < columns) tile[i * 33 + lane] = x[u64(row + i) * columns + column + lane];
    }
    __syncthreads();
    for (u32 i = threadIdx.x / 32; i < 32; i += 3) {
        if (column + i < columns && row + lane < rows) y[u64(column + i) * rows + row + lane] = tile[lane * 33 + i];
    }
}

// Each warp turns its own part around by itself, twice; whole warps leave early.
KERNEL(THREADS) warp_tiles(float* y, u32 warps) {
    SharedMemory memory;
    Shared<float> tile = memory.take<float>(THREADS) + threadIdx.x / WARP * WARP;
    if (threadIdx.x / WARP >= warps) return;
    const u32 lane = threadIdx.x % WARP;
    float x = float(threadIdx.x);
    for (int round = 0; round < 3; round++) {
        tile[lane] = x;
        __syncwarp();
        x = tile[WARP - 1 - lane];
        x += warp_sum(0.0f); // meets as well as __syncwarp
    }
    y[threadIdx.x] = x;
}

// Pairs of lanes exchange numbers, and only they meet.
KERNEL(THREADS) pairs(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    const u32 pair = 3u << (threadIdx.x % WARP / 2 * 2);
    s[threadIdx.x] = float(threadIdx.x);
    __syncwarp(pair);
    const float other = s[threadIdx.x ^ 1];
    __syncwarp(pair);
    s[threadIdx.x] = other;
    y[threadIdx.x] = s[threadIdx.x] + __shfl_xor_sync(pair, 1.0f, 1);
}

// y[i] = Σ over n slices of x, with the next slice on its way while one is read.
KERNEL(THREADS) double_buffered(float* y, const float* x, u32 n) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(2 * 4 * THREADS);
    float sum = 0.0f;
    async_copy16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
    async_commit();
    for (u32 i = 0; i < n; i++) {
        if (i + 1 < n) async_copy16(s + ((i + 1) % 2 * THREADS + threadIdx.x) * 4, x + ((i + 1) * THREADS + threadIdx.x) * 4);
        async_commit();
        async_wait<1>();
        __syncthreads();
        sum += s[i % 2 * 4 * THREADS + 4 * THREADS - 1 - threadIdx.x];
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}

// A row of 12 results a thread, of all that lanes can say to one another.
KERNEL(32) lanes(u32* y) {
    const u32 lane = threadIdx.x, x = 100 + lane;
    u32* row = y + 12 * lane;
    row[0] = __shfl_sync(FULL_WARP, x, 5);
    row[1] = __shfl_sync(FULL_WARP, x, 5, 8);
    row[2] = __shfl_xor_sync(FULL_WARP, x, 9);
    row[3] = __shfl_up_sync(FULL_WARP, x, 3);
    row[4] = __shfl_down_sync(FULL_WARP, x, 3);
    row[5] = __shfl_down_sync(FULL_WARP, x, 3, 16);
    row[6] = __ballot_sync(FULL_WARP, lane % 3 == 0);
    row[7] = u32(__any_sync(FULL_WARP, lane == 7)) + 2 * u32(__any_sync(FULL_WARP, 0));
    row[8] = u32(__all_sync(FULL_WARP, lane < 32)) + 2 * u32(__all_sync(FULL_WARP, lane < 31));
    row[9] = warp_sum(x);
    row[10] = u32(quad_sum(float(x)));
    row[11] = u32(quad_max(float(x)) * 1000.0f + warp_max(float(x)));
}

// The order in which a warp's sum is taken shows in its last bits.
KERNEL(32) sum_by_shuffles(float* y, const float* x) {
    float sum = x[threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    y[threadIdx.x] = sum;
    y[32 + threadIdx.x] = warp_sum(x[threadIdx.x]);
}

KERNEL(32) round_all(element* y, u32* pairs, const float* x, u32 n) {
    for (u32 i = threadIdx.x; i < n; i += 32) {
        y[i] = to_element(x[i]);
        pairs[i] = pack_bf16(x[i], x[n - 1 - i]);
    }
}

KERNEL(64) where(u32* y) {
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    y[block * blockDim.x + threadIdx.x] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x;
}
