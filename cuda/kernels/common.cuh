// What several kernels share; it stands on device.cuh alone and means the same on the GPU and under the emulator.

// Eight neighbouring elements as floats: 16 bytes of bf16.
struct Eight {
    float v[8];
};

// p[0 .. n] of up to eight numbers, zeros beyond. Aligned full eights go as words of 16 bytes.
DEVICE Eight load8(const float* p, int n) {
    Eight x;
    if (n >= 8 && reinterpret_cast<u64>(p) % 16 == 0) {
        float4 low = *reinterpret_cast<const float4*>(p), high = *reinterpret_cast<const float4*>(p + 4);
        x = Eight{{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x.v[i] = i < n ? p[i] : 0.0f;
    }
    return x;
}
DEVICE Eight load8(const bf16* p, int n) {
    Eight x;
    if (n >= 8 && reinterpret_cast<u64>(p) % 16 == 0) {
        uint4 word = *reinterpret_cast<const uint4*>(p);
        u32 words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x.v[2 * i] = __uint_as_float(words[i] << 16);
            x.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x.v[i] = i < n ? to_float(p[i]) : 0.0f;
    }
    return x;
}

// p[0 .. n] = x of up to eight elements, rounded.
DEVICE void store8(element* p, const Eight& x, int n) {
    if (n >= 8 && reinterpret_cast<u64>(p) % 16 == 0) {
#ifdef ELEMENT_BF16
        uint4 word = {pack_bf16(x.v[0], x.v[1]), pack_bf16(x.v[2], x.v[3]), pack_bf16(x.v[4], x.v[5]), pack_bf16(x.v[6], x.v[7])};
        *reinterpret_cast<uint4*>(p) = word;
#else
        *reinterpret_cast<float4*>(p) = float4{x.v[0], x.v[1], x.v[2], x.v[3]};
        *reinterpret_cast<float4*>(p + 4) = float4{x.v[4], x.v[5], x.v[6], x.v[7]};
#endif
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < n) p[i] = to_element(x.v[i]);
        }
    }
}

// Sum over the block, in every thread: the warp's tree, then the warps in their order. `sums` holds one T a warp; the block
// meets twice.
template <class T>
DEVICE T block_sum(T x, Shared<T> sums) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    T total = sums[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; warp++) total += sums[warp];
    __syncthreads();
    return total;
}

DEVICE float block_max(float x, Shared<float> tops) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = x;
    __syncthreads();
    float top = tops[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; warp++) top = fmaxf(top, tops[warp]);
    __syncthreads();
    return top;
}
