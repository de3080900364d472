// Causal attention of a run of query tokens over paged keys and values.
//
// Layout of a block, for each layer: keys[kv_head][token / 16][head_dim][16], then
// values[kv_head][token][head_dim]; float or bf16. head_dim and block tokens are multiples of 16.
// One call handles one key-value head and up to kQueries query rows (tokens times the heads that
// share it), so that keys and values are read once for all of them.
//
// Positions are taken in chunks of 64 from position 0, with a running maximum and sum; within a
// chunk scores add over head_dim in ascending order and outputs over positions in ascending
// order, in float32. The chunks do not depend on the batch, so a query's result is the same bits
// however its prompt was cut and whatever else runs. Values beyond a row's last position are
// never read: recycled memory cannot leak into a result.
// Tolerance against the torch twin: 1e-5 for inputs of unit size.
#pragma once

#include "simd.h"

namespace hr {

constexpr int kChunk = 64;
constexpr int kTiles = kChunk / kLanes;
#if defined(__AVX512F__)
constexpr int kQueryRows = 6;  // 6 x 4 accumulators
#else
constexpr int kQueryRows = 2;
#endif
constexpr int kQueries = 48;

struct AttentionShape {
    int32_t head_dim;
    int32_t block_tokens;
    size_t key_items;  // numbers of one layer's keys in a block
};

struct AttentionScratch {
    float* query;    // [kQueries][head_dim]
    float* output;   // [kQueries][head_dim]
    float* keys;     // [kTiles][head_dim][16]
    float* values;   // [kChunk][head_dim]
    float maximum[kQueries];
    float total[kQueries];
    int32_t last[kQueries];  // position of each query

    static size_t floats(int head_dim) { return size_t(2 * kQueries + 2 * kChunk) * head_dim; }
};

inline F32 load_number(const float* p) { return load<F32>(p); }
inline F32 load_number(const uint16_t* p) { return from_bf16(load<U16>(p)); }

// Scores of `rows` queries against one chunk, softmax step, and the weighted sum of its values.
template <class Number, int rows>
void attend_rows(const AttentionShape& shape, AttentionScratch& s, int query, int first, int count,
                 const Number* const* key_tiles, const Number* const* value_groups) {
    const int dim = shape.head_dim;
    alignas(64) float weights[rows][kChunk];
    alignas(64) float scales[kLanes];  // of what earlier chunks gave
    float sums[rows];
    {
        F32 acc[rows][kTiles];
        for (int r = 0; r < rows; ++r)
            for (int t = 0; t < kTiles; ++t) acc[r][t] = splat(0.0f);
        for (int d = 0; d < dim; ++d) {
            F32 key[kTiles];
            for (int t = 0; t < kTiles; ++t) key[t] = load_number(key_tiles[t] + d * kLanes);
            for (int r = 0; r < rows; ++r) {
                const F32 q = splat(s.query[(query + r) * dim + d]);
                for (int t = 0; t < kTiles; ++t) acc[r][t] = fma(q, key[t], acc[r][t]);
            }
        }
        const I32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        alignas(64) float change[kLanes] = {};
        for (int r = 0; r < rows; ++r) {
            const int limit = s.last[query + r] - first;  // last lane that is seen
            if (limit < kChunk - 1)
                for (int t = 0; t < kTiles; ++t) {
                    const I32 seen = lane + t * kLanes <= limit;
                    acc[r][t] = seen ? acc[r][t] : splat(-INFINITY);
                }
            F32 highest = acc[r][0];
            for (int t = 1; t < kTiles; ++t) highest = maximum(highest, acc[r][t]);
            const float before = s.maximum[query + r];
            const float chunk_maximum = maximum(highest);
            const float now = before > chunk_maximum ? before : chunk_maximum;
            s.maximum[query + r] = now;
            change[r] = before - now;
            F32 added = splat(0.0f);
            for (int t = 0; t < kTiles; ++t) {
                const F32 weight = exp(acc[r][t] - splat(now));
                store(weights[r] + t * kLanes, weight);
                added = added + weight;
            }
            sums[r] = sum(added);
        }
        store(scales, exp(load<F32>(change)));
        for (int r = 0; r < rows; ++r) s.total[query + r] = s.total[query + r] * scales[r] + sums[r];
    }
    constexpr int kWidth = 4;  // vectors of head_dim at a time
    for (int d = 0; d < dim; d += kWidth * kLanes) {
        const int vectors = (dim - d) / kLanes < kWidth ? (dim - d) / kLanes : kWidth;
        F32 acc[rows][kWidth];
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < kWidth; ++v)
                acc[r][v] = v < vectors ? load<F32>(s.output + (query + r) * dim + d + v * kLanes) * splat(scales[r])
                                    : splat(0.0f);
        if (vectors == kWidth) {
            for (int t = 0; t < count; ++t) {
                const Number* row = value_groups[t / kLanes] + (t % kLanes) * dim + d;
                F32 value[kWidth];
                for (int v = 0; v < kWidth; ++v) value[v] = load_number(row + v * kLanes);
                for (int r = 0; r < rows; ++r) {
                    const F32 weight = splat(weights[r][t]);
                    for (int v = 0; v < kWidth; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
                }
            }
        } else {
            for (int t = 0; t < count; ++t) {
                const Number* row = value_groups[t / kLanes] + (t % kLanes) * dim + d;
                for (int v = 0; v < vectors; ++v) {
                    const F32 value = load_number(row + v * kLanes);
                    for (int r = 0; r < rows; ++r) acc[r][v] = fma(splat(weights[r][t]), value, acc[r][v]);
                }
            }
        }
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v) store(s.output + (query + r) * dim + d + v * kLanes, acc[r][v]);
    }
}

template <class Number, int rows>
void attend_chunk(const AttentionShape& shape, AttentionScratch& s, int query, int queries, int first,
                  int count, const Number* const* key_tiles, const Number* const* value_groups) {
    if constexpr (rows > 0) {
        for (; queries - query >= rows; query += rows)
            attend_rows<Number, rows>(shape, s, query, first, count, key_tiles, value_groups);
        if (query < queries)
            attend_chunk<Number, rows - 1>(shape, s, query, queries, first, count, key_tiles, value_groups);
    }
}

// s.query holds scaled queries and s.last their positions, which ascend. The result is in
// s.output. keys(position) gives the tile, values(position) the 16 rows, of 16 positions.
template <class Number, class Keys, class Values>
void attend(const AttentionShape& shape, AttentionScratch& s, int queries, const Keys& keys,
            const Values& values) {
    const int dim = shape.head_dim;
    const int end = s.last[queries - 1] + 1;
    for (int q = 0; q < queries; ++q) {
        s.maximum[q] = -INFINITY;
        s.total[q] = 0.0f;
    }
    std::memset(s.output, 0, sizeof(float) * queries * dim);
    for (int first = 0; first < end; first += kChunk) {
        const int count = end - first < kChunk ? end - first : kChunk;
        const Number* key_tiles[kTiles];
        const Number* value_groups[kTiles];
        for (int t = 0; t < kTiles; ++t) {
            // A tile past the end is not looked at: its scores are masked, so any tile will do.
            const int position = t * kLanes < count ? first + t * kLanes : first;
            key_tiles[t] = keys(position);
            value_groups[t] = values(position);
        }
        if constexpr (sizeof(Number) == 2) {
            if (queries > kQueryRows) {
                const float* wide_keys[kTiles];
                const float* wide_values[kTiles];
                for (int t = 0; t < kTiles; ++t) {
                    float* k = s.keys + t * kLanes * dim;
                    float* v = s.values + t * kLanes * dim;
                    for (int i = 0; i < kLanes * dim; i += kLanes) {
                        store(k + i, load_number(key_tiles[t] + i));
                        store(v + i, load_number(value_groups[t] + i));
                    }
                    wide_keys[t] = k;
                    wide_values[t] = v;
                }
                attend_chunk<float, kQueryRows>(shape, s, 0, queries, first, count, wide_keys, wide_values);
                continue;
            }
        }
        attend_chunk<Number, kQueryRows>(shape, s, 0, queries, first, count, key_tiles, value_groups);
    }
    for (int q = 0; q < queries; ++q)
        for (int d = 0; d < dim; d += kLanes) {
            float* out = s.output + q * dim + d;
            store(out, load<F32>(out) / splat(s.total[q]));
        }
}

}  // namespace hr
