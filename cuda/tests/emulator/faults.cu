// Kernels that each do one thing wrong; a mark at the end of a line is what the test looks for.

#define THREADS 64

KERNEL(THREADS) missing_barrier(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    s[threadIdx.x] = 0.0f;
    __syncthreads();
    s[threadIdx.x] = float(threadIdx.x); // mark: barrier write
    y[threadIdx.x] = s[THREADS - 1 - threadIdx.x]; // mark: barrier read
}

KERNEL(THREADS) missing_second_barrier(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    for (u32 round = 0; round < 2; round++) {
        s[threadIdx.x] = float(round); // mark: second write
        __syncthreads();
        y[threadIdx.x] = s[(threadIdx.x + 32) % THREADS]; // mark: second read
    }
}

KERNEL(THREADS) missing_syncwarp(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    s[threadIdx.x] = 0.0f;
    __syncthreads();
    s[threadIdx.x ^ 1] = 1.0f; // mark: syncwarp write
    y[threadIdx.x] = s[threadIdx.x]; // mark: syncwarp read
}

KERNEL(THREADS) two_writers(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(1);
    s[0] = 1.0f; // mark: two writers
    __syncthreads();
    y[threadIdx.x] = s[0];
}

KERNEL(THREADS) outside_shared(float* y, u32 n) {
    SharedMemory memory;
    memory.take<u32>(4);
    Shared<float> s = memory.take<float>(THREADS);
    s[threadIdx.x + n] = 1.0f; // mark: outside
    y[threadIdx.x] = 1.0f;
}

KERNEL(THREADS) outside_shared_read(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    s[threadIdx.x] = 1.0f;
    __syncthreads();
    y[threadIdx.x] = (s + threadIdx.x)[-1]; // mark: outside read
}

KERNEL(THREADS) divergent_barrier(float* y) {
    if (threadIdx.x < 40) {
        __syncthreads(); // mark: divergent
    }
    y[threadIdx.x] = 1.0f;
}

KERNEL(THREADS) two_barriers(float* y) {
    if (threadIdx.x < 32) {
        __syncthreads(); // mark: first of two
    } else {
        __syncthreads(); // mark: second of two
    }
    y[threadIdx.x] = 1.0f;
}

KERNEL(THREADS) unwritten(float* y) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(THREADS);
    if (threadIdx.x != 5) s[threadIdx.x] = 1.0f;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x]; // mark: unwritten
}

KERNEL(THREADS) partial_shuffle(float* y, u32 n) {
    if (threadIdx.x >= n) return;
    y[threadIdx.x] = __shfl_xor_sync(FULL_WARP, 1.0f, 1); // mark: partial
}

KERNEL(THREADS) shuffle_against_vote(float* y) {
    if (threadIdx.x % 2 == 0) {
        y[threadIdx.x] = __shfl_xor_sync(FULL_WARP, 1.0f, 1); // mark: shuffle
    } else {
        y[threadIdx.x] = float(__ballot_sync(FULL_WARP, 1)); // mark: vote
    }
}

KERNEL(THREADS) shuffle_against_barrier(float* y) {
    if (threadIdx.x == 3) {
        __syncthreads(); // mark: lone barrier
    } else {
        y[threadIdx.x] = warp_sum(1.0f); // mark: lonely sum
    }
}

KERNEL(THREADS) wrong_mask(float* y) {
    y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); // mark: left out
}

KERNEL(THREADS) from_nobody(float* y) {
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 20); // mark: from nobody
}

KERNEL(THREADS) missing_wait(float* y, const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    async_copy16(s + 4 * threadIdx.x, x + 4 * threadIdx.x); // mark: copy
    async_commit();
    async_wait<1>();
    __syncthreads();
    y[threadIdx.x] = s[4 * threadIdx.x]; // mark: copied
}

KERNEL(THREADS) missing_commit(float* y, const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    async_copy16(s + 4 * threadIdx.x, x + 4 * threadIdx.x); // mark: uncommitted copy
    async_wait<0>();
    __syncthreads();
    y[threadIdx.x] = s[4 * threadIdx.x]; // mark: uncommitted
}

KERNEL(THREADS) copy_over_readers(float* y, const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    for (u32 i = 0; i < 4; i++) s[4 * threadIdx.x + i] = 0.0f;
    __syncthreads();
    y[threadIdx.x] = s[4 * THREADS - 1 - 4 * threadIdx.x]; // mark: reader
    async_copy16(s + 4 * threadIdx.x, x + 4 * threadIdx.x); // mark: over readers
    async_commit();
    async_wait<0>();
}

KERNEL(THREADS) left_behind(const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    async_copy16(s + 4 * threadIdx.x, x + 4 * threadIdx.x); // mark: left behind
    if (threadIdx.x == 5) return;
    async_commit();
    async_wait<0>();
}

KERNEL(THREADS) crooked_copy(const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    async_copy16(s + threadIdx.x, x); // mark: crooked copy
    async_commit();
    async_wait<0>();
}

KERNEL(THREADS) crooked_source(const float* x) {
    SharedMemory memory;
    Shared<float> s = memory.take<float>(4 * THREADS);
    async_copy16(s + 4 * threadIdx.x, x + threadIdx.x); // mark: crooked source
    async_commit();
    async_wait<0>();
}

KERNEL(THREADS) crooked_tile(float* y, u32 at, u32 ld) {
    SharedMemory memory;
    Shared<element> s = memory.take<element>(32 * 32);
    for (u32 i = threadIdx.x; i < 32 * 32; i += THREADS) s[i] = to_element(0.0f);
    __syncthreads();
    y[threadIdx.x] = to_fragment(Accumulator(), Accumulator()).v[0] + load_b(s + at, ld).v[0]; // mark: crooked tile
}

KERNEL(THREADS) greedy() {
    SharedMemory memory;
    memory.take<float>(THREADS);
    memory.take<bf16>(9); // mark: greedy
}

KERNEL(THREADS) undecided() {
    SharedMemory memory;
    memory.take<float>(threadIdx.x < 7 ? 8 : 4); // mark: undecided
}

KERNEL(THREADS) outside_global(float* y, int i) {
    if (blockIdx.x == 2 && threadIdx.x == 3) y[i] = 1.0f; // mark: outside global
}

KERNEL(THREADS) outside_global_read(float* y, const float* x, int i) {
    if (threadIdx.x == 3) y[0] = x[i]; // mark: outside global read
}

KERNEL(THREADS) crooked_word(float4* y, u32 at) {
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    if (threadIdx.x == 0) *reinterpret_cast<float4*>(reinterpret_cast<float*>(y) + at) = zero; // mark: crooked word
}

KERNEL(THREADS) outside_local(float* y, u32 i) {
    float few[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    y[threadIdx.x] = few[i + threadIdx.x]; // mark: outside local
}

KERNEL(THREADS) divide_by_zero(u32* y, u32 n) {
    y[threadIdx.x] = threadIdx.x / n; // mark: division
}

KERNEL(THREADS) endless(float* y) {
    volatile float* flag = y;
    while (*flag != 7.0f) {
    }
}

KERNEL(THREADS) takes_all_kinds(float* p, u32 a, u64 b, float c, double d, int e) {
    if (threadIdx.x == 0) p[0] = float(a) + float(b) + c + float(d) + float(e);
}

KERNEL(48) half_a_warp_too_much(float* y) { y[0] = 1.0f; }

KERNEL(THREADS) sum_with_too_little(float* y) {
    SharedMemory memory;
    y[threadIdx.x] = block_sum(1.0f, memory.take<float>(1)); // one warp's worth
}

KERNEL(THREADS) blocks_share_a_sum(float* y) {
    if (threadIdx.x == 5) y[1] = float(blockIdx.x); // mark: shared sum
}

KERNEL(THREADS) reads_another_blocks_result(float* y) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    y[i] = 1.0f; // mark: own result
    if (blockIdx.x == 1) y[i] = y[0]; // mark: another block's result
}

KERNEL(THREADS) missing_barrier_in_global(float* y) {
    y[threadIdx.x] = 1.0f; // mark: global write
    const float other = y[THREADS - 1 - threadIdx.x]; // mark: global read
    if (other < 0.0f) y[0] = other;
}

KERNEL(THREADS) unwritten_global(float* y, const u32* x) {
    y[threadIdx.x] = float(x[threadIdx.x]); // mark: unwritten global
}

KERNEL(THREADS) huge_frame(float* y, u32 n) {
    volatile float many[100000];
    for (u32 i = 0; i < 100000; i++) many[i] = float(i);
    y[threadIdx.x] = many[n];
}
