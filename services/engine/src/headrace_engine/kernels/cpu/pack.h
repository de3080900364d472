// From rows as a file stores them to the panels of linear.h.
//
// Formats carry their ggml_type numbers. Repacking 4-bit and 8-bit blocks moves bits and loses
// nothing; Q4_0's offset of 8 becomes a minimum of -8 * scale, which is exact in half precision
// unless it overflows. To bf16 values are rounded to nearest, ties to even.
#pragma once

#include <vector>

#include "linear.h"
#include "pool.h"
#include "simd.h"

namespace hr {

enum Format : int32_t { kStoredF32 = 0, kStoredF16 = 1, kStoredQ40 = 2, kStoredQ41 = 3, kStoredQ80 = 8, kStoredBf16 = 30 };

inline uint16_t half_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
}

// One stored row as float32. Blocks of 32: Q4_0 half scale, 16 bytes; Q4_1 half scale, half
// minimum, 16 bytes; Q8_0 half scale, 32 bytes. A byte holds input i low and i + 16 high.
inline void unpack_row(int32_t format, const uint8_t* source, int inputs, float* out) {
    switch (format) {
        case kStoredF32:
            std::memcpy(out, source, sizeof(float) * inputs);
            break;
        case kStoredF16:
            for (int i = 0; i < inputs; ++i) out[i] = from_f16(half_at(source + 2 * i));
            break;
        case kStoredBf16:
            for (int i = 0; i < inputs; ++i) out[i] = from_bf16(half_at(source + 2 * i));
            break;
        case kStoredQ40:
        case kStoredQ41: {
            const bool affine = format == kStoredQ41;
            for (int b = 0; b < inputs / 32; ++b, source += affine ? 20 : 18) {
                const float scale = from_f16(half_at(source));
                const float low = affine ? from_f16(half_at(source + 2)) : -8.0f * scale;
                const uint8_t* nibbles = source + (affine ? 4 : 2);
                for (int i = 0; i < 16; ++i) {
                    out[32 * b + i] = float(nibbles[i] & 15) * scale + low;
                    out[32 * b + 16 + i] = float(nibbles[i] >> 4) * scale + low;
                }
            }
            break;
        }
        case kStoredQ80:
            for (int b = 0; b < inputs / 32; ++b, source += 34) {
                const float scale = from_f16(half_at(source));
                for (int i = 0; i < 32; ++i) out[32 * b + i] = float(int8_t(source[2 + i])) * scale;
            }
            break;
    }
}

// Half precision of -8 * x: the exponent moves by three, the sign flips.
inline uint16_t minus_eight_times(uint16_t half) {
    const float x = -8.0f * from_f16(half);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
    const int exponent = int(bits >> 23 & 0xffu) - 127 + 15;
    if ((bits & 0x7fffffffu) == 0) return sign;
    if (exponent >= 31) return uint16_t(sign | 0x7c00u);
    if (exponent >= 1) return uint16_t(sign | exponent << 10 | (bits >> 13 & 0x3ffu));
    return uint16_t(sign | ((bits & 0x7fffffu) | 0x800000u) >> (14 - exponent));
}

inline void pack_q4(int32_t format, const uint8_t* const* rows, int count, int inputs, uint8_t* panel) {
    const bool affine = format == kStoredQ41;
    const int size = affine ? 20 : 18;
    for (int g = 0; g < inputs / kGroup; ++g, panel += WeightQ4::bytes)
        for (int lane = 0; lane < count; ++lane) {
            const uint8_t* block = rows[lane] + g * size;
            const uint16_t scale = half_at(block);
            const uint16_t low = affine ? half_at(block + 2) : minus_eight_times(scale);
            std::memcpy(panel + 2 * lane, &scale, 2);
            std::memcpy(panel + 32 + 2 * lane, &low, 2);
            const uint8_t* nibbles = block + (affine ? 4 : 2);
            for (int word = 0; word < 4; ++word) {
                uint32_t bits = 0;
                for (int j = 0; j < 8; ++j) {
                    const uint8_t byte = nibbles[(8 * word + j) % 16];
                    bits |= uint32_t(word < 2 ? byte & 15 : byte >> 4) << (4 * j);
                }
                std::memcpy(panel + 64 + 64 * word + 4 * lane, &bits, 4);
            }
        }
}

inline void pack_q8(const uint8_t* const* rows, int count, int inputs, uint8_t* panel) {
    for (int g = 0; g < inputs / kGroup; ++g, panel += WeightQ8::bytes)
        for (int lane = 0; lane < count; ++lane) {
            const uint8_t* block = rows[lane] + g * 34;
            std::memcpy(panel + 2 * lane, block, 2);
            for (int k = 0; k < kGroup; ++k) panel[32 + kLanes * k + lane] = block[2 + k];
        }
}

inline void pack_plain(Kind kind, int32_t format, const uint8_t* const* rows, int count, int inputs,
                       std::vector<float>& values, uint8_t* panel) {
    values.resize(size_t(kLanes) * inputs);
    for (int lane = 0; lane < count; ++lane) unpack_row(format, rows[lane], inputs, values.data() + size_t(lane) * inputs);
    for (int k = 0; k < inputs; ++k)
        for (int lane = 0; lane < count; ++lane) {
            const float x = values[size_t(lane) * inputs + k];
            if (kind == kF32) {
                std::memcpy(panel + 4 * (size_t(k) * kLanes + lane), &x, 4);
            } else {
                const uint16_t bits = to_bf16(x);
                std::memcpy(panel + 2 * ((size_t(k / 2) * kLanes + lane) * 2 + k % 2), &bits, 2);
            }
        }
}

inline void pack(Pool& pool, const Linear& linear, int32_t format, const uint8_t* source, int64_t row_bytes,
                 int rows, uint8_t* panels, int first_panel, int panel_stride) {
    std::vector<std::vector<float>> values(pool.threads());
    pool.run((rows + kLanes - 1) / kLanes, [&](int task, int thread) {
        const int first = task * kLanes, count = rows - first < kLanes ? rows - first : kLanes;
        const uint8_t* lanes[kLanes];
        for (int lane = 0; lane < count; ++lane) lanes[lane] = source + (first + lane) * row_bytes;
        uint8_t* panel = panels + (size_t(task) * panel_stride + first_panel) * linear.panel_bytes();
        if (linear.kind == kQ4) pack_q4(format, lanes, count, linear.inputs, panel);
        else if (linear.kind == kQ8) pack_q8(lanes, count, linear.inputs, panel);
        else pack_plain(linear.kind, format, lanes, count, linear.inputs, values[thread], panel);
    });
}

// One weight out of a panel.
inline float weight_at(Kind kind, const uint8_t* panel, int lane, int k) {
    const int inside = k % kGroup;
    panel += size_t(k / kGroup) * group_bytes(kind);
    switch (kind) {
        case kF32: {
            float x;
            std::memcpy(&x, panel + 4 * (inside * kLanes + lane), 4);
            return x;
        }
        case kBf16:
            return from_bf16(half_at(panel + 2 * ((inside / 2 * kLanes + lane) * 2 + inside % 2)));
        case kQ4: {
            uint32_t word;
            std::memcpy(&word, panel + 64 + 64 * (inside / 8) + 4 * lane, 4);
            return from_f16(half_at(panel + 2 * lane)) * float(word >> (4 * (inside % 8)) & 15u) +
                   from_f16(half_at(panel + 32 + 2 * lane));
        }
        case kQ8:
            return from_f16(half_at(panel + 2 * lane)) * float(int8_t(panel[32 + kLanes * inside + lane]));
    }
    return 0.0f;
}

}  // namespace hr
