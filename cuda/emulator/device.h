// What device.cuh gives to kernels, for g++ and the CPU: the same names with the same meaning, and a look at every access.
// runtime.h stands above it.

#include <utility>

#define KERNEL(THREADS) static void
#define DEVICE static inline __attribute__((always_inline, unused))
#define FULL_WARP 0xffffffffu
#define WARP 32

#define __device__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx emulator::emulator_thread_index()
#define blockIdx emulator::emulator_block_index()
#define blockDim emulator::emulator_block_size()
#define gridDim emulator::emulator_grid_size()

// For what kernels call and is not theirs: its accesses to memory are not looked at.
#define UNWATCHED __attribute__((no_sanitize("thread")))

// ---------------------------------------------------------------------------------------------------------------- numbers

// The vectors of CUDA that kernels read and write as words.
struct __align__(8) uint2 { u32 x, y; };
struct __align__(16) uint4 { u32 x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };

template <class To, class From>
DEVICE To emulator_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE float __uint_as_float(u32 x) { return emulator_bits<float>(x); }
DEVICE u32 __float_as_uint(float x) { return emulator_bits<u32>(x); }
DEVICE float __int_as_float(int x) { return emulator_bits<float>(x); }
DEVICE int __float_as_int(float x) { return emulator_bits<int>(x); }
DEVICE int __popc(u32 x) { return __builtin_popcount(x); }
DEVICE int __ffs(int x) { return __builtin_ffs(x); }
DEVICE int __clz(int x) { return x ? __builtin_clz(u32(x)) : 32; }
DEVICE u32 __umulhi(u32 a, u32 b) { return u32(u64(a) * b >> 32); }
DEVICE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
DEVICE int min(int a, int b) { return b < a ? b : a; }
DEVICE u32 min(u32 a, u32 b) { return b < a ? b : a; }
DEVICE u64 min(u64 a, u64 b) { return b < a ? b : a; }
DEVICE int max(int a, int b) { return a < b ? b : a; }
DEVICE u32 max(u32 a, u32 b) { return a < b ? b : a; }
DEVICE u64 max(u64 a, u64 b) { return a < b ? b : a; }

struct __align__(2) bf16 {
    u16 bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// The nearest bf16, ties to even; what is no number stays none.
DEVICE u16 emulator_round(float x) {
    u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE u32 pack_bf16(float low, float high) { return u32(emulator_round(high)) << 16 | emulator_round(low); }

#ifdef ELEMENT_BF16
typedef bf16 element;
DEVICE element to_element(float x) { return bf16{emulator_round(x)}; }
#else
typedef float element;
DEVICE element to_element(float x) { return x; }
#endif

// ----------------------------------------------------------------------------------------------------------- shared memory

// An index with the line it stands on.
struct EmulatorIndex {
    long long value;
    emulator::Site site;
    template <class I>
    EmulatorIndex(I i, emulator::Site site = HERE) : value((long long)i), site(site) {}
};

template <class T>
struct Shared;

// p[i]: an element that is read or written when it is used.
template <class T>
struct EmulatorPlace {
    T* data;
    emulator::Cell* cell;
    u32 piece;
    emulator::Site site;
    long long index;

    UNWATCHED T get() const {
        using namespace emulator;
        Machine* m = machine;
        if (__builtin_expect(cell->written < m->block_start, 0)) emulator_unwritten(cell, piece, index, site);
        if (__builtin_expect(cell->written >= m->last_barrier && cell->writer != m->thread, 0)) {
            emulator_read_after(cell, piece, index, site);
        }
        const u16 reader = merge_reader(cell->reader, cell->read, u16(m->thread));
        cell->read = m->now, cell->reader = reader, cell->read_at = site;
        return *data;
    }
    UNWATCHED void set(T x) const {
        using namespace emulator;
        Machine* m = machine;
        if (__builtin_expect((cell->written >= m->last_barrier && cell->writer != m->thread) || cell->writer & COPYING ||
                             (cell->read >= m->last_barrier && cell->reader != m->thread), 0)) {
            emulator_write_after(cell, piece, index, site);
        }
        cell->written = m->now, cell->writer = u16(m->thread), cell->written_at = site;
        *data = x;
    }

    operator T() const { return get(); }
    const EmulatorPlace& operator=(T x) const { return set(x), *this; }
    const EmulatorPlace& operator=(const EmulatorPlace& other) const { return set(other.get()), *this; }
    const EmulatorPlace& operator+=(T x) const { return set(get() + x), *this; }
    const EmulatorPlace& operator-=(T x) const { return set(get() - x), *this; }
    const EmulatorPlace& operator*=(T x) const { return set(get() * x), *this; }
    const EmulatorPlace& operator/=(T x) const { return set(get() / x), *this; }
    const EmulatorPlace& operator|=(T x) const { return set(get() | x), *this; }
    const EmulatorPlace& operator&=(T x) const { return set(get() & x), *this; }
    const EmulatorPlace& operator^=(T x) const { return set(get() ^ x), *this; }
    const EmulatorPlace& operator++() const { return set(get() + T(1)), *this; }
    T operator++(int) const {
        T x = get();
        return set(x + T(1)), x;
    }
};

// A pointer into a piece of shared memory.
template <class T>
struct Shared {
    T* data = nullptr; // the piece
    emulator::Cell* cells = nullptr;
    u32 piece = 0, count = 0;
    long long at = 0; // where in it this points to

    EmulatorPlace<T> operator[](EmulatorIndex i) const { return place(i); }
    template <class I>
    Shared operator+(I i) const {
        Shared moved = *this;
        moved.at += (long long)i;
        return moved;
    }
    template <class I>
    Shared& operator+=(I i) {
        at += (long long)i;
        return *this;
    }

    EmulatorPlace<T> place(EmulatorIndex i) const {
        const long long index = at + i.value;
        if (__builtin_expect(u64(index) >= count, 0)) emulator::emulator_outside(piece, index, count, i.site);
        return {data + index, cells + index, piece, i.site, index};
    }
};

struct SharedMemory {
    u32 used = 0, pieces = 0;
    template <class T>
    UNWATCHED Shared<T> take(u32 n, emulator::Site site = HERE) {
        emulator::Piece piece = emulator::emulator_take(pieces, used, n, sizeof(T), site);
        Shared<T> shared;
        shared.data = reinterpret_cast<T*>(emulator::machine->shared + used);
        shared.cells = emulator::machine->cells + used;
        shared.piece = pieces++, shared.count = n;
        used = piece.offset + (n * u32(sizeof(T)) + 15u) / 16u * 16u;
        return shared;
    }
};

// The rule of 16 bytes, for what moves whole words.
template <class T>
UNWATCHED static inline void emulator_check16(const char* call, const Shared<T>& p, emulator::Site site) {
    const long long byte = p.at * (long long)sizeof(T);
    if (byte % 16 != 0) emulator::emulator_fault(site, "%s at byte %lld of shared piece %u, not a multiple of 16", call, byte, p.piece);
}

template <class T>
DEVICE void async_copy16(Shared<T> to, const T* from, emulator::Site site = HERE) {
    emulator_check16("async_copy16", to, site);
    if (u64(from) % 16 != 0) emulator::emulator_fault(site, "async_copy16 from an address that is not a multiple of 16");
    const u32 count = 16 / sizeof(T);
    EmulatorPlace<T> place = to.place(EmulatorIndex(0, site));
    to.place(EmulatorIndex(count - 1, site));
    emulator::emulator_async_copy(reinterpret_cast<u8*>(place.data), place.cell, count, from, place.piece, place.index, site);
}
DEVICE void async_commit() { emulator::emulator_async_commit(); }
template <int N>
DEVICE void async_wait() {
    emulator::emulator_async_wait(N);
}

// ------------------------------------------------------------------------------------------------------------------- warps

DEVICE void __syncthreads(emulator::Site site = HERE) { emulator::emulator_barrier(site); }

// The lanes of `mask` meet; `resolve` is called once with what they brought, lane by lane, of those in the mask.
template <class Data, class Resolve>
UNWATCHED static inline void emulator_together(const char* call, u32 mask, Data& data, emulator::Site site, Resolve resolve) {
    if (emulator::Warp* warp = emulator::emulator_arrive(call, mask, &data, site)) {
        Data* all[WARP];
        for (u32 lane = 0; lane < WARP; lane++) all[lane] = static_cast<Data*>(warp->lanes[lane].data);
        resolve(all);
        emulator::emulator_leave(warp, mask);
    }
}

DEVICE void __syncwarp(u32 mask = FULL_WARP, emulator::Site site = HERE) {
    u32 nothing = 0;
    emulator_together("__syncwarp", mask, nothing, site, [](u32**) {});
}

template <class T>
struct EmulatorShuffle {
    T value;
    u32 from;
};

// Each lane of `mask` gets the value of the lane it names, which must take part.
template <class T>
UNWATCHED static inline T emulator_shuffle(const char* call, u32 mask, T value, u32 from, emulator::Site site) {
    EmulatorShuffle<T> own = {value, from};
    emulator_together(call, mask, own, site, [=](EmulatorShuffle<T>** all) UNWATCHED {
        T values[WARP];
        for (u32 lane = 0; lane < WARP; lane++) {
            if (mask >> lane & 1) values[lane] = all[lane]->value;
        }
        for (u32 lane = 0; lane < WARP; lane++) {
            if (!(mask >> lane & 1)) continue;
            const u32 from = all[lane]->from;
            if (!(mask >> from & 1)) {
                emulator::emulator_fault(site, "%s: lane %u asks lane %u, which the mask %08x leaves out", call, lane, from, mask);
            }
            all[lane]->value = values[from];
        }
    });
    return own.value;
}
DEVICE u32 emulator_lane() { return threadIdx.x % WARP; }

template <class T>
DEVICE T __shfl_sync(u32 mask, T x, int source, int width = WARP, emulator::Site site = HERE) {
    const u32 base = emulator_lane() & ~u32(width - 1);
    return emulator_shuffle("__shfl_sync", mask, x, base + (u32(source) & u32(width - 1)), site);
}
template <class T>
DEVICE T __shfl_xor_sync(u32 mask, T x, int bits, int width = WARP, emulator::Site site = HERE) {
    const u32 lane = emulator_lane(), from = lane ^ u32(bits);
    // A lane of a later group is out of reach.
    return emulator_shuffle("__shfl_xor_sync", mask, x, from / u32(width) <= lane / u32(width) ? from : lane, site);
}
template <class T>
DEVICE T __shfl_up_sync(u32 mask, T x, u32 distance, int width = WARP, emulator::Site site = HERE) {
    const u32 lane = emulator_lane();
    return emulator_shuffle("__shfl_up_sync", mask, x, lane % u32(width) >= distance ? lane - distance : lane, site);
}
template <class T>
DEVICE T __shfl_down_sync(u32 mask, T x, u32 distance, int width = WARP, emulator::Site site = HERE) {
    const u32 lane = emulator_lane();
    return emulator_shuffle("__shfl_down_sync", mask, x, lane % u32(width) + distance < u32(width) ? lane + distance : lane, site);
}

UNWATCHED static inline u32 emulator_ballot(const char* call, u32 mask, bool yes, emulator::Site site) {
    u32 vote = yes;
    emulator_together(call, mask, vote, site, [=](u32** all) UNWATCHED {
        u32 votes = 0;
        for (u32 lane = 0; lane < WARP; lane++) {
            if (mask >> lane & 1) votes |= *all[lane] << lane;
        }
        for (u32 lane = 0; lane < WARP; lane++) {
            if (mask >> lane & 1) *all[lane] = votes;
        }
    });
    return vote;
}
DEVICE u32 __ballot_sync(u32 mask, int yes, emulator::Site site = HERE) { return emulator_ballot("__ballot_sync", mask, yes, site); }
DEVICE int __any_sync(u32 mask, int yes, emulator::Site site = HERE) { return emulator_ballot("__any_sync", mask, yes, site) != 0; }
DEVICE int __all_sync(u32 mask, int yes, emulator::Site site = HERE) { return emulator_ballot("__all_sync", mask, yes, site) == mask; }

// One meeting for a whole tree: at each distance every lane takes in the lane that far away.
template <class T, class Join>
UNWATCHED static inline T emulator_tree(const char* call, T x, int distance, emulator::Site site, Join join) {
    emulator_together(call, FULL_WARP, x, site, [=](T** all) UNWATCHED {
        T now[WARP], next[WARP];
        for (u32 lane = 0; lane < WARP; lane++) now[lane] = *all[lane];
        for (u32 step = u32(distance); step > 0; step /= 2) {
            for (u32 lane = 0; lane < WARP; lane++) next[lane] = join(now[lane], now[lane ^ step]);
            memcpy(now, next, sizeof now);
        }
        for (u32 lane = 0; lane < WARP; lane++) *all[lane] = now[lane];
    });
    return x;
}
template <class T>
DEVICE T warp_sum(T x, emulator::Site site = HERE) {
    return emulator_tree("warp_sum", x, 16, site, [](T a, T b) { return a + b; });
}
DEVICE float warp_max(float x, emulator::Site site = HERE) { return emulator_tree("warp_max", x, 16, site, fmaxf); }
DEVICE float quad_sum(float x, emulator::Site site = HERE) {
    return emulator_tree("quad_sum", x, 2, site, [](float a, float b) { return a + b; });
}
DEVICE float quad_max(float x, emulator::Site site = HERE) { return emulator_tree("quad_max", x, 2, site, fmaxf); }

// ------------------------------------------------------------------------------------------------------------ tensor cores
//
// Fragments are floats in both precisions: a product of two bf16 is exact in float.

struct Accumulator {
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};
DEVICE int accumulator_row(int i) { return int(threadIdx.x % WARP) / 4 + i / 2 * 8; }
DEVICE int accumulator_column(int i) { return int(threadIdx.x % 4) * 2 + i % 2; }

struct FragmentA {
    float v[8]; // rows g, g + 8 of columns 2t, 2t + 1; then the same of columns 2t + 8, 2t + 9; g = lane / 4, t = lane % 4
};
struct FragmentB {
    float v[4]; // rows 2t, 2t + 1, 2t + 8, 2t + 9 of column g
};
DEVICE int emulator_a_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
DEVICE int emulator_a_column(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 4 * 8; }
DEVICE int emulator_b_row(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }
DEVICE int emulator_b_column(int lane) { return lane / 4; }

// Element (row, column) lies at p[row * row_step + column * column_step]; one of the steps is 1, the other the distance of rows.
UNWATCHED static inline void emulator_check_tile(const char* call, const Shared<element>& p, int ld, emulator::Site site) {
    emulator_check16(call, p, site);
    if (ld * sizeof(element) % 16 != 0) emulator::emulator_fault(site, "%s with rows of %d elements, not a multiple of 16 bytes", call, ld);
}
UNWATCHED static inline FragmentA emulator_load_a(const char* call, const Shared<element>& p, int row_step, int column_step,
                                                  emulator::Site site) {
    emulator_check_tile(call, p, row_step * column_step, site);
    const int lane = int(emulator_lane());
    FragmentA a;
    for (int i = 0; i < 8; i++) {
        const int at = emulator_a_row(lane, i) * row_step + emulator_a_column(lane, i) * column_step;
        a.v[i] = to_float(p.place(EmulatorIndex(at, site)).get());
    }
    return a;
}
UNWATCHED static inline FragmentB emulator_load_b(const char* call, const Shared<element>& p, int row_step, int column_step,
                                                  emulator::Site site) {
    emulator_check_tile(call, p, row_step * column_step, site);
    const int lane = int(emulator_lane());
    FragmentB b;
    for (int i = 0; i < 4; i++) {
        const int at = emulator_b_row(lane, i) * row_step + emulator_b_column(lane) * column_step;
        b.v[i] = to_float(p.place(EmulatorIndex(at, site)).get());
    }
    return b;
}
DEVICE FragmentA load_a(Shared<element> p, int ld, emulator::Site site = HERE) { return emulator_load_a("load_a", p, ld, 1, site); }
DEVICE FragmentA load_a_t(Shared<element> p, int ld, emulator::Site site = HERE) { return emulator_load_a("load_a_t", p, 1, ld, site); }
DEVICE FragmentB load_b(Shared<element> p, int ld, emulator::Site site = HERE) { return emulator_load_b("load_b", p, 1, ld, site); }
DEVICE FragmentB load_b_t(Shared<element> p, int ld, emulator::Site site = HERE) { return emulator_load_b("load_b_t", p, ld, 1, site); }

DEVICE FragmentA to_fragment(const Accumulator& left, const Accumulator& right) {
    FragmentA a;
    for (int i = 0; i < 4; i++) a.v[i] = to_float(to_element(left.v[i])), a.v[4 + i] = to_float(to_element(right.v[i]));
    return a;
}

struct EmulatorMma {
    float* c;
    const float *a, *b;
};
UNWATCHED static inline void mma(Accumulator& c, const FragmentA& a, const FragmentB& b, emulator::Site site = HERE) {
    EmulatorMma own = {c.v, a.v, b.v};
    emulator_together("mma", FULL_WARP, own, site, [](EmulatorMma** all) UNWATCHED {
        float a[16][16], b[16][8], c[16][8];
        for (int lane = 0; lane < WARP; lane++) {
            for (int i = 0; i < 8; i++) a[emulator_a_row(lane, i)][emulator_a_column(lane, i)] = all[lane]->a[i];
            for (int i = 0; i < 4; i++) b[emulator_b_row(lane, i)][emulator_b_column(lane)] = all[lane]->b[i];
            for (int i = 0; i < 4; i++) c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = all[lane]->c[i];
        }
        emulator::emulator_product(c, a, b);
        for (int lane = 0; lane < WARP; lane++) {
            for (int i = 0; i < 4; i++) all[lane]->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
    });
}

// ----------------------------------------------------------------------------------------------- how a launch finds a kernel

template <class T>
constexpr emulator::Kind EMULATOR_KIND = emulator::OTHER;
template <class T>
constexpr emulator::Kind EMULATOR_KIND<T*> = emulator::ADDRESS;
template <>
constexpr emulator::Kind EMULATOR_KIND<u32> = emulator::U32;
template <>
constexpr emulator::Kind EMULATOR_KIND<int> = emulator::U32;
template <>
constexpr emulator::Kind EMULATOR_KIND<u64> = emulator::U64;
template <>
constexpr emulator::Kind EMULATOR_KIND<float> = emulator::F32;
template <>
constexpr emulator::Kind EMULATOR_KIND<double> = emulator::F64;

// Calls a kernel with arguments that come as 64 bits each, of which its type takes the lowest.
template <class Function>
struct EmulatorCall;
template <class... Parameters>
struct EmulatorCall<void (*)(Parameters...)> {
    static constexpr u32 count = sizeof...(Parameters);
    static constexpr u8 kinds[count + 1] = {EMULATOR_KIND<Parameters>..., 0};
    template <class T>
    static T as(const u64* bits) {
        static_assert(EMULATOR_KIND<T> != emulator::OTHER, "kernels take pointers, u32, int, u64, float and double");
        T x;
        memcpy(&x, bits, sizeof x);
        return x;
    }
    template <void (*kernel)(Parameters...), size_t... I>
    static void spread(const u64* args, std::index_sequence<I...>) {
        kernel(as<Parameters>(args + I)...);
    }
    template <void (*kernel)(Parameters...)>
    static void run(const u64* args) {
        spread<kernel>(args, std::index_sequence_for<Parameters...>());
    }
};
template <class Call>
constexpr emulator::Entry emulator_entry(const char* name, u32 threads, void (*run)(const u64*)) {
    return {name, threads, Call::count, Call::kinds, run};
}
#define EMULATOR_ENTRY(kernel, THREADS) \
    emulator_entry<EmulatorCall<decltype(&kernel)>>(#kernel, THREADS, EmulatorCall<decltype(&kernel)>::run<&kernel>)
