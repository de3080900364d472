// Vectors of 16 lanes, written with the compilers' vector extension so that they build for any
// processor; the few places where that is slow use AVX-512 directly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace hr {

constexpr int kLanes = 16;

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint32_t U32 __attribute__((vector_size(64)));
typedef uint16_t U16 __attribute__((vector_size(32)));
typedef int8_t I8 __attribute__((vector_size(16)));

template <class V>
inline V load(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
inline void store(void* p, V v) {
    std::memcpy(p, &v, sizeof v);
}

inline F32 splat(float x) { return F32{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

inline U32 splat_bits(uint32_t x) { return U32{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

// a * b + c, rounded once where the processor can.
inline F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
    return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c;
#endif
}

inline F32 maximum(F32 a, F32 b) {
#if defined(__AVX512F__)
    return (F32)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

inline F32 from_bf16(U16 bits) {
#if defined(__AVX512F__)
    return (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bits), 16);
#else
    return (F32)(__builtin_convertvector(bits, U32) << 16);
#endif
}

inline F32 from_i8(I8 values) {
#if defined(__AVX512F__)
    return (F32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)values));
#else
    return __builtin_convertvector(__builtin_convertvector(values, I32), F32);
#endif
}

inline float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

// Round to nearest, ties to even. Not-a-numbers stay so.
inline uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_f16(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    uint32_t wide;
    if (magnitude >= 0x7c00u) {
        wide = sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    } else if (magnitude >= 0x400u) {
        wide = sign | ((magnitude << 13) + 0x38000000u);
    } else {
        const float small = float(magnitude) * 0x1p-24f;
        uint32_t small_bits;
        std::memcpy(&small_bits, &small, sizeof small_bits);
        wide = sign | small_bits;
    }
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

inline F32 from_f16(const void* p) {
#if defined(__AVX512F__)
    return (F32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
    F32 v;
    for (int i = 0; i < kLanes; ++i) {
        uint16_t bits;
        std::memcpy(&bits, (const char*)p + 2 * i, sizeof bits);
        v[i] = from_f16(bits);
    }
    return v;
#endif
}

// The sum of 16 lanes, always in this order: halves are added to halves.
inline float sum(F32 v) {
#if defined(__AVX512F__)
    const __m512d wide = (__m512d)v;
    const __m256 eight = _mm256_add_ps((__m256)_mm512_castpd512_pd256(wide), (__m256)_mm512_extractf64x4_pd(wide, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

inline float maximum(F32 v) {
#if defined(__AVX512F__)
    const __m512d wide = (__m512d)v;
    const __m256 eight = _mm256_max_ps((__m256)_mm512_castpd512_pd256(wide), (__m256)_mm512_extractf64x4_pd(wide, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
#endif
}

// e to the x, within 2 units in the last place; exactly 0 below -87.3, infinite above 88.7.
inline F32 exp(F32 x) {
    const F32 scaled = x * splat(1.44269504088896341f);
#if defined(__AVX512F__)
    const F32 rounded = (F32)_mm512_roundscale_ps((__m512)scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
    const F32 magic = splat(12582912.0f);
    const F32 rounded = (scaled + magic) - magic;
#endif
    F32 r = fma(rounded, splat(-0.693359375f), x);
    r = fma(rounded, splat(2.12194440e-4f), r);
    F32 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
#if defined(__AVX512F__)
    const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.33654f), _CMP_NLT_UQ);
    const F32 y = (F32)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)rounded);
    return x > splat(88.72283f) ? splat(INFINITY) : y;
#else
    // Two factors, because 2^128 does not fit one.
    const I32 n = __builtin_convertvector(rounded, I32);
    const I32 half = n >> 1;
    const F32 first = (F32)((half + 127) << 23);
    const F32 second = (F32)((n - half + 127) << 23);
    const F32 y = p * first * second;
    const F32 low = x < splat(-87.33654f) ? splat(0.0f) : y;
    return x > splat(88.72283f) ? splat(INFINITY) : low;
#endif
}

// Natural logarithm of positive normal numbers, within 2 units in the last place.
inline F32 log(F32 x) {
    const U32 bits = (U32)x;
    I32 exponent = (I32)(bits >> 23) - 126;
    F32 m = (F32)((bits & 0x007fffffu) | 0x3f000000u);
    const I32 low = m < splat(0.70710678118654752f);
    exponent += low;
    m = (low ? m + m : m) - splat(1.0f);
    const F32 e = __builtin_convertvector(exponent, F32);
    const F32 z = m * m;
    F32 p = splat(7.0376836292e-2f);
    p = fma(p, m, splat(-1.1514610310e-1f));
    p = fma(p, m, splat(1.1676998740e-1f));
    p = fma(p, m, splat(-1.2420140846e-1f));
    p = fma(p, m, splat(1.4249322787e-1f));
    p = fma(p, m, splat(-1.6668057665e-1f));
    p = fma(p, m, splat(2.0000714765e-1f));
    p = fma(p, m, splat(-2.4999993993e-1f));
    p = fma(p, m, splat(3.3333331174e-1f));
    F32 y = p * m * z;
    y = fma(e, splat(-2.12194440e-4f), y);
    y = fma(z, splat(-0.5f), y);
    return fma(e, splat(0.693359375f), m + y);
}

}  // namespace hr
