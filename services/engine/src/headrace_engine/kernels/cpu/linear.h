// Linear layers: y[m, n] = sum over k of x[m, k] * w[n, k].
//
// Weights lie in panels of 16 outputs, one lane each. A panel is a run of groups of 32 inputs:
//   f32   float[32][16]
//   bf16  uint16[16 pairs][16][2]     both inputs of a pair side by side in a lane
//   q4    half scale[16], half minimum[16], uint32 words[4][16]
//         input 8 * word + j is nibble j of the lane's word; weight = scale * nibble + minimum
//   q8    half scale[16], int8[32][16]                        weight = scale * value
// Inputs are padded with zero weights to whole groups, outputs to an even number of panels;
// rows of x are padded to whole groups too, and must be finite there.
//
// Accumulation is float32, one accumulator an output, inputs in ascending order, each product
// fused into its sum: the result of a row does not depend on the other rows or on the number of
// threads, and is the same bits however many rows there are. bf16 on a processor with bf16 dot
// products instead rounds x to bf16 and adds pairs of products; again the same for every row.
// Tolerance against the torch twin: 2e-6 * sqrt(k) relative to the largest |x| * |w| sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.h"
#include "simd.h"

namespace hr {

enum Kind : int32_t { kF32 = 0, kBf16 = 1, kQ4 = 2, kQ8 = 3 };

constexpr int kGroup = 32;

inline int padded(int n, int to) { return (n + to - 1) / to * to; }

struct Linear {
    Kind kind;
    int32_t outputs;
    int32_t inputs;
    const uint8_t* panels;
    const float* bias;  // float[outputs padded to 32], or null

    int groups() const { return padded(inputs, kGroup) / kGroup; }
    int panel_count() const { return padded(outputs, 2 * kLanes) / kLanes; }
    size_t panel_bytes() const;
};

struct WeightF32 {
    static constexpr size_t bytes = kGroup * kLanes * 4;
    struct Head {};
    struct Word {};
    static Head head(const uint8_t*) { return {}; }
    static Word word(const uint8_t*, int) { return {}; }
    static F32 value(const uint8_t* p, const Head&, const Word&, int k) {
        return load<F32>(p + 64 * k);
    }
};

struct WeightBf16 {
    static constexpr size_t bytes = kGroup * kLanes * 2;
    struct Head {};
    struct Word {};
    static Head head(const uint8_t*) { return {}; }
    static Word word(const uint8_t*, int) { return {}; }
    static F32 value(const uint8_t* p, const Head&, const Word&, int k) {
        const U32 pair = load<U32>(p + 64 * (k / 2));
        return (F32)(k % 2 ? pair & 0xffff0000u : pair << 16);
    }
};

struct WeightQ4 {
    static constexpr size_t bytes = 2 * kLanes * 2 + kGroup / 8 * kLanes * 4;
    struct Head {
        F32 scale, minimum;
    };
    typedef U32 Word;
    static Head head(const uint8_t* p) { return {from_f16(p), from_f16(p + 32)}; }
    static Word word(const uint8_t* p, int w) { return load<U32>(p + 64 + 64 * w); }
    static F32 value(const uint8_t*, const Head& head, const Word& word, int k) {
        return fma(head.scale, nibble(word >> (4 * (k % 8))), head.minimum);
    }
    // The low nibble of each lane as a number.
    static F32 nibble(U32 bits) {
#if defined(__AVX512F__)
        const F32 table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return (F32)_mm512_permutexvar_ps((__m512i)bits, (__m512)table);
#else
        return __builtin_convertvector((I32)(bits & 15u), F32);
#endif
    }
};

struct WeightQ8 {
    static constexpr size_t bytes = kLanes * 2 + kGroup * kLanes;
    struct Head {
        F32 scale;
    };
    struct Word {};
    static Head head(const uint8_t* p) { return {from_f16(p)}; }
    static Word word(const uint8_t*, int) { return {}; }
    static F32 value(const uint8_t* p, const Head& head, const Word&, int k) {
        return from_i8(load<I8>(p + 32 + kLanes * k)) * head.scale;
    }
};

inline size_t group_bytes(Kind kind) {
    switch (kind) {
        case kF32: return WeightF32::bytes;
        case kBf16: return WeightBf16::bytes;
        case kQ4: return WeightQ4::bytes;
        case kQ8: return WeightQ8::bytes;
    }
    return 0;
}

inline size_t Linear::panel_bytes() const { return groups() * group_bytes(kind); }

// What happens to a finished tile.
enum class Then {
    kStore,    // y = sum
    kAdd,      // y += sum
    kSiluMul,  // panels alternate gate and up: y = silu(gate) * up, half as many columns
};

template <Then then, int rows, int vectors>
inline void finish(const F32 (&acc)[rows][vectors], float* y, size_t y_stride, int panel) {
    for (int r = 0; r < rows; ++r) {
        float* out = y + r * y_stride;
        if constexpr (then == Then::kSiluMul) {
            for (int v = 0; v < vectors; v += 2) {
                const F32 gate = acc[r][v];
                const F32 silu = gate / (splat(1.0f) + exp(-gate));
                store(out + (panel + v) / 2 * kLanes, silu * acc[r][v + 1]);
            }
        } else {
            for (int v = 0; v < vectors; ++v) {
                float* at = out + (panel + v) * kLanes;
                store(at, then == Then::kAdd ? load<F32>(at) + acc[r][v] : acc[r][v]);
            }
        }
    }
}

template <int rows, int vectors>
inline void begin(F32 (&acc)[rows][vectors], const float* bias, int panel) {
    for (int v = 0; v < vectors; ++v) {
        const F32 first = bias ? load<F32>(bias + (panel + v) * kLanes) : splat(0.0f);
        for (int r = 0; r < rows; ++r) acc[r][v] = first;
    }
}

template <class Weight, Then then, int rows, int vectors>
void tile(const float* x, size_t x_stride, const uint8_t* w, size_t panel_bytes, int groups,
          const float* bias, float* y, size_t y_stride, int panel) {
    F32 acc[rows][vectors];
    begin(acc, bias, panel);
    for (int g = 0; g < groups; ++g, w += Weight::bytes, x += kGroup) {
        typename Weight::Head heads[vectors];
        for (int v = 0; v < vectors; ++v) heads[v] = Weight::head(w + v * panel_bytes);
        for (int word = 0; word < kGroup / 8; ++word) {
            typename Weight::Word words[vectors];
            for (int v = 0; v < vectors; ++v) words[v] = Weight::word(w + v * panel_bytes, word);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                const int k = 8 * word + j;
                F32 value[vectors];
                for (int v = 0; v < vectors; ++v)
                    value[v] = Weight::value(w + v * panel_bytes, heads[v], words[v], k);
                for (int r = 0; r < rows; ++r) {
                    const F32 input = splat(x[r * x_stride + k]);
                    for (int v = 0; v < vectors; ++v) acc[r][v] = fma(input, value[v], acc[r][v]);
                }
            }
        }
    }
    finish<then>(acc, y, y_stride, panel);
}

#if defined(__AVX512BF16__)
// x is bf16 here, two inputs to a 32-bit word.
template <Then then, int rows, int vectors>
void tile_dot(const uint16_t* x, size_t x_stride, const uint8_t* w, size_t panel_bytes, int groups,
              const float* bias, float* y, size_t y_stride, int panel) {
    F32 acc[rows][vectors];
    begin(acc, bias, panel);
    for (int pair = 0; pair < groups * kGroup / 2; ++pair) {
        __m512bh value[vectors];
        for (int v = 0; v < vectors; ++v)
            value[v] = (__m512bh)load<U32>(w + v * panel_bytes + 64 * pair);
        for (int r = 0; r < rows; ++r) {
            int32_t both;
            std::memcpy(&both, x + r * x_stride + 2 * pair, sizeof both);
            const __m512bh input = (__m512bh)_mm512_set1_epi32(both);
            for (int v = 0; v < vectors; ++v)
                acc[r][v] = (F32)_mm512_dpbf16_ps((__m512)acc[r][v], input, value[v]);
        }
    }
    finish<then>(acc, y, y_stride, panel);
}
constexpr bool kDotsBf16 = true;
#else
constexpr bool kDotsBf16 = false;
#endif

#if defined(__AVX512F__)
constexpr int kWideRows = 12;  // 12 x 2 accumulators of 32 registers
#else
constexpr int kWideRows = 2;  // a vector of 16 is two or four registers here
#endif
constexpr int kNarrowRows = kWideRows < 8 ? kWideRows : 8;

template <class Weight, Then then, int vectors, int rows>
void tiles(int count, const float* x, size_t x_stride, const uint8_t* w, size_t panel_bytes,
           int groups, const float* bias, float* y, size_t y_stride, int panel) {
    if constexpr (rows > 0) {
        int done = 0;
        for (; count - done >= rows; done += rows)
            tile<Weight, then, rows, vectors>(x + done * x_stride, x_stride, w, panel_bytes, groups,
                                              bias, y + done * y_stride, y_stride, panel);
        if (done < count)
            tiles<Weight, then, vectors, rows - 1>(count - done, x + done * x_stride, x_stride, w,
                                                   panel_bytes, groups, bias, y + done * y_stride,
                                                   y_stride, panel);
    }
}

#if defined(__AVX512BF16__)
template <Then then, int rows>
void tiles_dot(int count, const uint16_t* x, size_t x_stride, const uint8_t* w, size_t panel_bytes,
               int groups, const float* bias, float* y, size_t y_stride, int panel) {
    if constexpr (rows > 0) {
        int done = 0;
        for (; count - done >= rows; done += rows)
            tile_dot<then, rows, 2>(x + done * x_stride, x_stride, w, panel_bytes, groups, bias,
                                    y + done * y_stride, y_stride, panel);
        if (done < count)
            tiles_dot<then, rows - 1>(count - done, x + done * x_stride, x_stride, w, panel_bytes,
                                      groups, bias, y + done * y_stride, y_stride, panel);
    }
}
#endif

template <class Weight>
void expand(const uint8_t* w, int groups, float* out) {
    for (int g = 0; g < groups; ++g, w += Weight::bytes) {
        const auto head = Weight::head(w);
        for (int word = 0; word < kGroup / 8; ++word) {
            const auto bits = Weight::word(w, word);
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j, out += kLanes)
                store(out, Weight::value(w, head, bits, 8 * word + j));
        }
    }
}

template <class Weight, Then then>
void linear_of(Pool& pool, const Linear& linear, int rows, const float* x, size_t x_stride, float* y,
               size_t y_stride, float* const* scratch) {
    const int panels = linear.panel_count(), groups = linear.groups();
    const size_t bytes = linear.panel_bytes();
    // Few rows: weights are read once and used at once. Four panels a task keep enough sums in
    // flight to hide their latency, unless that leaves too few tasks to share.
    if (rows <= 2 && panels % 4 == 0 && panels >= 16 * pool.threads()) {
        pool.run(panels / 4, [&](int task, int) {
            const int panel = 4 * task;
            tiles<Weight, then, 4, 2>(rows, x, x_stride, linear.panels + panel * bytes, bytes, groups,
                                      linear.bias, y, y_stride, panel);
        });
        return;
    }
    constexpr bool narrow = sizeof(typename Weight::Head) + sizeof(typename Weight::Word) > 2 ||
                            Weight::bytes != WeightF32::bytes;
    if (narrow && rows <= 2 * kNarrowRows) {
        pool.run(panels / 2, [&](int task, int) {
            const int panel = 2 * task;
            tiles<Weight, then, 2, kNarrowRows>(rows, x, x_stride, linear.panels + panel * bytes,
                                                bytes, groups, linear.bias, y, y_stride, panel);
        });
        return;
    }
    pool.run(panels / 2, [&](int task, int thread) {
        const int panel = 2 * task;
        const uint8_t* w = linear.panels + panel * bytes;
        size_t wide_bytes = bytes;
        if constexpr (narrow) {
            wide_bytes = groups * WeightF32::bytes;
            float* out = scratch[thread];
            for (int v = 0; v < 2; ++v)
                expand<Weight>(w + v * bytes, groups, out + v * wide_bytes / sizeof(float));
            w = (const uint8_t*)out;
        }
        tiles<WeightF32, then, 2, kWideRows>(rows, x, x_stride, w, wide_bytes, groups, linear.bias, y,
                                             y_stride, panel);
    });
}

// scratch[thread] holds two panels as float32: 2 * padded inputs * 16 floats.
// rounded holds rows * x_stride bf16 numbers where the processor multiplies those.
template <Then then>
void run_linear(Pool& pool, const Linear& linear, int rows, const float* x, size_t x_stride, float* y,
                size_t y_stride, float* const* scratch, uint16_t* rounded) {
    if (rows == 0) return;
    switch (linear.kind) {
        case kF32:
            return linear_of<WeightF32, then>(pool, linear, rows, x, x_stride, y, y_stride, scratch);
        case kQ4:
            return linear_of<WeightQ4, then>(pool, linear, rows, x, x_stride, y, y_stride, scratch);
        case kQ8:
            return linear_of<WeightQ8, then>(pool, linear, rows, x, x_stride, y, y_stride, scratch);
        case kBf16:
            break;
    }
#if defined(__AVX512BF16__)
    const int width = linear.groups() * kGroup;
    pool.run(rows, [&](int row, int) {
        for (int k = 0; k < width; ++k) rounded[row * x_stride + k] = to_bf16(x[row * x_stride + k]);
    });
    const size_t bytes = linear.panel_bytes();
    pool.run(linear.panel_count() / 2, [&](int task, int) {
        tiles_dot<then, kWideRows>(rows, rounded, x_stride, linear.panels + 2 * task * bytes, bytes,
                                   linear.groups(), linear.bias, y, y_stride, 2 * task);
    });
#else
    (void)rounded;
    linear_of<WeightBf16, then>(pool, linear, rows, x, x_stride, y, y_stride, scratch);
#endif
}

}  // namespace hr
