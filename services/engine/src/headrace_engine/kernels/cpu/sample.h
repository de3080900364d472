// The parts of sampling that walk the whole vocabulary.
#pragma once

#include "pool.h"
#include "simd.h"

namespace hr {

// Largest of each row; of equal ones the first. A row with a number that is not finite says so.
inline void greedy(Pool& pool, const float* logits, int64_t stride, int rows, int vocabulary, int32_t* tokens,
                   uint8_t* finite) {
    pool.run(rows, [&](int row, int) {
        const float* x = logits + row * stride;
        const I32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        F32 best = splat(-INFINITY);
        I32 where = lane;
        // x - x is 0 for a finite number and not a number for any other.
        F32 doubt = splat(0.0f);
        const int whole = vocabulary / kLanes * kLanes;
        for (int i = 0; i < whole; i += kLanes) {
            const F32 v = load<F32>(x + i);
            const I32 larger = v > best;
            best = larger ? v : best;
            where = larger ? lane + i : where;
            doubt = doubt + (v - v);
        }
        float largest = -INFINITY, rest = sum(doubt);
        int index = 0;
        for (int l = 0; l < kLanes && whole > 0; ++l)
            if (best[l] > largest || (best[l] == largest && where[l] < index)) {
                largest = best[l];
                index = where[l];
            }
        for (int i = whole; i < vocabulary; ++i) {
            rest += x[i] - x[i];
            if (x[i] > largest) {
                largest = x[i];
                index = i;
            }
        }
        tokens[row] = index;
        finite[row] = rest == 0.0f;
    });
}

inline U32 mix(U32 bits) {
    bits = (bits ^ (bits >> 16)) * 0x7feb352du;
    bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
    return bits ^ (bits >> 16);
}

// The twin of gumbel() in executor/sampler.py, to rounding of the logarithms.
inline void gumbel(Pool& pool, uint32_t first, uint32_t second, int count, float* out) {
    constexpr int kPart = 4096;
    pool.run((count + kPart - 1) / kPart, [&](int task, int) {
        const U32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const int end = (task + 1) * kPart < count ? (task + 1) * kPart : count;
        for (int i = task * kPart; i < end; i += kLanes) {
            U32 bits = (lane + splat_bits(i)) * 0x9e3779b1u + splat_bits(first);
            bits = mix(mix(bits) + splat_bits(second));
            const F32 uniform = (__builtin_convertvector((I32)(bits >> 9), F32) + splat(0.5f)) * splat(0x1p-23f);
            const F32 noise = -log(-log(uniform));
            if (i + kLanes <= end) store(out + i, noise);
            else for (int l = 0; l < end - i; ++l) out[i + l] = noise[l];
        }
    });
}

}  // namespace hr
