// What a kernel may ask of the machine, on an NVIDIA GPU (sm_80 and newer).
//
// This file is the whole border between our kernels and the hardware. The emulator (cuda/emulator/device.h) gives the same names
// another meaning and the kernels do not know which of the two they run on; so nothing outside these two files may use inline PTX,
// and no kernel may include a header of CUDA (NVRTC then needs none: a driver and libnvrtc are enough).
//
// Names that CUDA itself gives and both sides have: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_sync,
// __shfl_xor_sync, __shfl_up_sync, __shfl_down_sync, __ballot_sync, __any_sync, __all_sync, and the functions of math.h.

typedef unsigned int u32;
typedef unsigned long long u64;

// Opens a kernel; THREADS is the exact number of threads of a block, a multiple of 32 (all blocks are one-dimensional). One block a
// multiprocessor is enough: without that word the compiler spills a few numbers to fit in one block more.
#define KERNEL(THREADS) extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define DEVICE static __device__ __forceinline__
#define FULL_WARP 0xffffffffu
#define WARP 32

// ---------------------------------------------------------------------------------------------------------------- numbers

// A bfloat16: the upper half of a float.
struct __align__(2) bf16 {
    unsigned short bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// Two floats rounded to the nearest bf16 (ties to even), `low` in the lower half of the word.
DEVICE u32 pack_bf16(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// What the unit is compiled for: activations and the weights that products read are of this type; sums are always float.
#ifdef ELEMENT_BF16
typedef bf16 element;
DEVICE element to_element(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bf16{bits};
}
#else
typedef float element;
DEVICE element to_element(float x) { return x; }
#endif

// ----------------------------------------------------------------------------------------------------------- shared memory

// A pointer into shared memory. Kernels use p[i], p + i and what is below, and nothing else: the emulator looks at every access.
template <class T>
using Shared = T*;

// Hands out the block's dynamic shared memory in pieces, each beginning at a multiple of 16 bytes. Every thread makes one, and
// takes the same pieces in the same order; the launcher gives as many bytes as the pieces come to.
struct SharedMemory {
    u32 used = 0;
    template <class T>
    __device__ __forceinline__ Shared<T> take(u32 n) {
        extern __shared__ __align__(128) unsigned char shared_bytes[];
        T* piece = reinterpret_cast<T*>(shared_bytes + used);
        used += (n * u32(sizeof(T)) + 15u) / 16u * 16u;
        return piece;
    }
};

// 16 bytes from global to shared memory, both at multiples of 16 bytes, while the thread goes on. They may be read after
// async_wait and a barrier. async_commit closes a batch; async_wait<N> waits until at most the N youngest batches are under way.
template <class T>
DEVICE void async_copy16(Shared<T> to, const T* from) {
    u32 address = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ------------------------------------------------------------------------------------------------------------------- warps

// Sum or maximum over the 32 lanes, in every lane, by one fixed tree (distance 16, 8, 4, 2, 1).
template <class T>
DEVICE T warp_sum(T x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}
DEVICE float warp_max(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

// The same over the four lanes that hold a row of an Accumulator (distance 2, 1).
DEVICE float quad_sum(float x) {
    for (int distance = 2; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}
DEVICE float quad_max(float x) {
    for (int distance = 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

// ------------------------------------------------------------------------------------------------------------ tensor cores
//
// C[16, 8] += A[16, 16] · B[16, 8], the product of one warp. All lanes of the warp call these together.
//
//   load_a    A(m, k) at p[m * ld + k]        load_a_t  A(m, k) at p[k * ld + m]
//   load_b    B(k, n) at p[n * ld + k]        load_b_t  B(k, n) at p[k * ld + n]
//
// p and every row of it lie at multiples of 16 bytes. An Accumulator is spread over the lanes in the way that PTX documents for
// mma.m16n8k16: its v[i] is C(accumulator_row(i), accumulator_column(i)). Fragments are not looked into.

struct Accumulator {
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};
DEVICE int accumulator_row(int i) { return int(threadIdx.x % WARP) / 4 + i / 2 * 8; }
DEVICE int accumulator_column(int i) { return int(threadIdx.x % 4) * 2 + i % 2; }

#ifdef ELEMENT_BF16

struct FragmentA {
    u32 r[4];
};
struct FragmentB {
    u32 r[2];
};

DEVICE FragmentA load_a(Shared<element> p, int ld) {
    int lane = threadIdx.x % WARP;
    u32 address = u32(__cvta_generic_to_shared(p + (lane % 16) * ld + lane / 16 * 8));
    FragmentA a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3]) : "r"(address) : "memory");
    return a;
}
DEVICE FragmentA load_a_t(Shared<element> p, int ld) {
    int lane = threadIdx.x % WARP;
    u32 address = u32(__cvta_generic_to_shared(p + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8));
    FragmentA a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3]) : "r"(address) : "memory");
    return a;
}
DEVICE FragmentB load_b(Shared<element> p, int ld) {
    int lane = threadIdx.x % 16;
    u32 address = u32(__cvta_generic_to_shared(p + (lane % 8) * ld + lane / 8 * 8));
    FragmentB b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(b.r[0]), "=r"(b.r[1]) : "r"(address) : "memory");
    return b;
}
DEVICE FragmentB load_b_t(Shared<element> p, int ld) {
    u32 address = u32(__cvta_generic_to_shared(p + (threadIdx.x % 16) * ld));
    FragmentB b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(b.r[0]), "=r"(b.r[1]) : "r"(address) : "memory");
    return b;
}
// A[16, 16] from two accumulators that lie side by side, rounded.
DEVICE FragmentA to_fragment(const Accumulator& left, const Accumulator& right) {
    return FragmentA{{pack_bf16(left.v[0], left.v[1]), pack_bf16(left.v[2], left.v[3]), pack_bf16(right.v[0], right.v[1]),
                      pack_bf16(right.v[2], right.v[3])}};
}
DEVICE void mma(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

#else

// In float there is no tensor core with full precision: the same fragments, multiplied by the ordinary units.
struct FragmentA {
    float v[8]; // rows g, g + 8 of columns 2t, 2t + 1; then the same of columns 2t + 8, 2t + 9; g = lane / 4, t = lane % 4
};
struct FragmentB {
    float v[4]; // rows 2t, 2t + 1, 2t + 8, 2t + 9 of column g
};
DEVICE int fragment_a_row(int i) { return int(threadIdx.x % WARP) / 4 + i / 2 % 2 * 8; }
DEVICE int fragment_a_column(int i) { return int(threadIdx.x % 4) * 2 + i % 2 + i / 4 * 8; }
DEVICE int fragment_b_row(int i) { return int(threadIdx.x % 4) * 2 + i % 2 + i / 2 * 8; }
DEVICE int fragment_b_column() { return int(threadIdx.x % WARP) / 4; }

DEVICE FragmentA load_a(Shared<element> p, int ld) {
    FragmentA a;
    for (int i = 0; i < 8; i++) a.v[i] = p[fragment_a_row(i) * ld + fragment_a_column(i)];
    return a;
}
DEVICE FragmentA load_a_t(Shared<element> p, int ld) {
    FragmentA a;
    for (int i = 0; i < 8; i++) a.v[i] = p[fragment_a_column(i) * ld + fragment_a_row(i)];
    return a;
}
DEVICE FragmentB load_b(Shared<element> p, int ld) {
    FragmentB b;
    for (int i = 0; i < 4; i++) b.v[i] = p[fragment_b_column() * ld + fragment_b_row(i)];
    return b;
}
DEVICE FragmentB load_b_t(Shared<element> p, int ld) {
    FragmentB b;
    for (int i = 0; i < 4; i++) b.v[i] = p[fragment_b_row(i) * ld + fragment_b_column()];
    return b;
}
DEVICE FragmentA to_fragment(const Accumulator& left, const Accumulator& right) {
    return FragmentA{{left.v[0], left.v[1], left.v[2], left.v[3], right.v[0], right.v[1], right.v[2], right.v[3]}};
}
// One chain of fused multiply-adds an element, k ascending; what a lane lacks it gets from the lane that holds it. The loops over
// lanes stay loops: unrolled, kernels of many products would take minutes to compile and run out of registers.
DEVICE void mma(Accumulator& c, const FragmentA& a, const FragmentB& b) {
    const int row = threadIdx.x % WARP / 4 * 4, column = threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll 1
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float low = __shfl_sync(FULL_WARP, a.v[half * 4 + i], row + t), high = __shfl_sync(FULL_WARP, a.v[half * 4 + 2 + i], row + t);
                float even = __shfl_sync(FULL_WARP, b.v[half * 2 + i], column + t), odd = __shfl_sync(FULL_WARP, b.v[half * 2 + i], column + 4 + t);
                c.v[0] = fmaf(low, even, c.v[0]);
                c.v[1] = fmaf(low, odd, c.v[1]);
                c.v[2] = fmaf(high, even, c.v[2]);
                c.v[3] = fmaf(high, odd, c.v[3]);
            }
        }
    }
}

#endif
