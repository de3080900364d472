// The whole forward pass of a llama-like decoder over paged KV, behind a plain C interface.
//
// Steps of a layer, each one parallel loop: norm, fused QKV; rotation and KV write; attention;
// output projection onto the residual; norm, gate and up with silu-multiply; down onto the
// residual. Linears and attention state their own reduction orders; a norm adds squares in 16
// lanes in ascending order and then the lanes, in float32. No row's result depends on another's.
#include <memory>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pack.h"
#include "pool.h"
#include "sample.h"
#include "simd.h"

namespace hr {
namespace {

struct LayerWeights {
    const float* attention_norm;
    const float* mlp_norm;
    const float* query_norm;  // float[head_dim], or null; likewise key_norm
    const float* key_norm;
    Linear qkv, attention_output, gate_up, down;
};

struct Shape {
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    float norm_epsilon;
};

struct Batch {
    const int32_t* tokens;
    const int32_t* offsets;
    const int32_t* begins;
    const int64_t* blocks;
    const int32_t* block_starts;
    const int32_t* store_from;
    const int32_t* outputs;
    int32_t rows;
    int32_t output_count;
};

struct Cache {
    uint8_t* region;
    int32_t block_tokens;
    int32_t item_bytes;
    size_t key_items;    // of one layer in a block
    size_t layer_items;  // keys and values
};

// Memory of floats that starts on a cache line.
class Floats {
  public:
    void resize(size_t count) {
        data_.assign(count + 16, 0.0f);
        const auto address = reinterpret_cast<uintptr_t>(data_.data());
        begin_ = data_.data() + (64 - address % 64) % 64 / sizeof(float);
    }
    float* get() const { return begin_; }

  private:
    std::vector<float> data_;
    float* begin_ = nullptr;
};

// A stretch of one row's queries that one task attends with.
struct QueryBlock {
    int32_t row;
    int32_t first;  // token of the batch
    int32_t count;
};

constexpr int kSerialTokens = 4;  // fewer are not worth a loop over threads

}  // namespace

class Decoder {
  public:
    Decoder(Pool& pool, const Shape& shape, Linear embedding, Linear output, const float* final_norm,
            std::vector<LayerWeights> layers)
        : pool_(pool), shape_(shape), embedding_(embedding), output_(output), final_norm_(final_norm),
          layers_(std::move(layers)) {}

    void start(int tokens, int outputs, const Cache& cache, const float* rope) {
        cache_ = cache;
        rope_ = rope;
        const int qkv = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
        const int pad = 2 * kLanes;
        hidden_stride_ = padded(shape_.hidden, pad);
        qkv_stride_ = padded(qkv, pad);
        attention_stride_ = padded(shape_.heads * shape_.head_dim, pad);
        wide_stride_ = padded(shape_.intermediate, pad);
        const int rows = tokens > outputs ? tokens : outputs;
        residual_.resize(size_t(rows) * hidden_stride_);
        normed_.resize(size_t(rows) * hidden_stride_);
        qkv_.resize(size_t(tokens) * qkv_stride_);
        attended_.resize(size_t(tokens) * attention_stride_);
        wide_.resize(size_t(tokens) * wide_stride_);
        int widest = hidden_stride_ > wide_stride_ ? hidden_stride_ : wide_stride_;
        widest = widest > attention_stride_ ? widest : attention_stride_;
        if (kDotsBf16) rounded_.assign(size_t(rows) * widest, 0);
        thread_memory_.resize(pool_.threads());
        scratch_.resize(pool_.threads());
        attention_.resize(pool_.threads());
        const size_t expanded = size_t(widest) * 2 * kLanes;
        for (int i = 0; i < pool_.threads(); ++i) {
            thread_memory_[i].resize(expanded + AttentionScratch::floats(shape_.head_dim));
            float* at = thread_memory_[i].get();
            scratch_[i] = at;
            at += expanded;
            auto& a = attention_[i];
            a.query = at;
            a.output = a.query + kQueries * shape_.head_dim;
            a.keys = a.output + kQueries * shape_.head_dim;
            a.values = a.keys + kChunk * shape_.head_dim;
        }
        positions_.resize(tokens);
        row_of_.resize(tokens);
    }

    void run(const Batch& batch, float* logits, int logits_stride) {
        const int tokens = batch.offsets[batch.rows];
        plan(batch, tokens);
        each(tokens, [&](int t) { embed(batch.tokens[t], residual_.get() + size_t(t) * hidden_stride_); });
        for (int layer = 0; layer < shape_.layers; ++layer) run_layer(batch, layer, tokens);
        each(batch.output_count, [&](int i) {
            norm(residual_.get() + size_t(batch.outputs[i]) * hidden_stride_, final_norm_, shape_.hidden,
                 normed_.get() + size_t(i) * hidden_stride_);
        });
        run_linear<Then::kStore>(pool_, output_, batch.output_count, normed_.get(), hidden_stride_, logits,
                                 logits_stride, scratch_.data(), rounded_.data());
    }

  private:
    template <class Body>
    void each(int count, const Body& body) {
        if (count <= kSerialTokens)
            for (int i = 0; i < count; ++i) body(i);
        else
            pool_.run(count, [&](int i, int) { body(i); });
    }

    void plan(const Batch& batch, int tokens) {
        const int group = shape_.heads / shape_.kv_heads;
        const int most = group >= kQueries ? 1 : kQueries / group;
        query_blocks_.clear();
        for (int row = 0; row < batch.rows; ++row) {
            const int first = batch.offsets[row], end = batch.offsets[row + 1];
            for (int t = first; t < end; ++t) {
                positions_[t] = batch.begins[row] + t - first;
                row_of_[t] = row;
            }
            for (int t = first; t < end; t += most)
                query_blocks_.push_back({row, t, end - t < most ? end - t : most});
        }
        (void)tokens;
    }

    void run_layer(const Batch& batch, int index, int tokens) {
        const LayerWeights& layer = layers_[index];
        norm_all(layer.attention_norm, tokens);
        run_linear<Then::kStore>(pool_, layer.qkv, tokens, normed_.get(), hidden_stride_, qkv_.get(),
                                 qkv_stride_, scratch_.data(), rounded_.data());
        each(tokens, [&](int t) {
            if (cache_.item_bytes == 4) rotate_and_store<float>(batch, index, t);
            else rotate_and_store<uint16_t>(batch, index, t);
        });
        // The last blocks of a row see the most positions: they go first, so that no thread is
        // left alone with them.
        const int blocks = int(query_blocks_.size()), kv_heads = shape_.kv_heads;
        pool_.run(blocks * kv_heads, [&](int task, int thread) {
            const QueryBlock& block = query_blocks_[blocks - 1 - task / kv_heads];
            if (cache_.item_bytes == 4) attend_block<float>(batch, index, block, task % kv_heads, thread);
            else attend_block<uint16_t>(batch, index, block, task % kv_heads, thread);
        });
        run_linear<Then::kAdd>(pool_, layer.attention_output, tokens, attended_.get(), attention_stride_,
                               residual_.get(), hidden_stride_, scratch_.data(), rounded_.data());
        norm_all(layer.mlp_norm, tokens);
        run_linear<Then::kSiluMul>(pool_, layer.gate_up, tokens, normed_.get(), hidden_stride_,
                                   wide_.get(), wide_stride_, scratch_.data(), rounded_.data());
        run_linear<Then::kAdd>(pool_, layer.down, tokens, wide_.get(), wide_stride_, residual_.get(),
                               hidden_stride_, scratch_.data(), rounded_.data());
    }

    void norm_all(const float* weight, int tokens) {
        each(tokens, [&](int t) {
            norm(residual_.get() + size_t(t) * hidden_stride_, weight, shape_.hidden,
                 normed_.get() + size_t(t) * hidden_stride_);
        });
    }

    // y may be x.
    void norm(const float* x, const float* weight, int size, float* y) const {
        const int whole = size / kLanes * kLanes;
        F32 squares = splat(0.0f);
        for (int i = 0; i < whole; i += kLanes) {
            const F32 v = load<F32>(x + i);
            squares = fma(v, v, squares);
        }
        float total = sum(squares);
        for (int i = whole; i < size; ++i) total += x[i] * x[i];
        const float scale = 1.0f / std::sqrt(total / size + shape_.norm_epsilon);
        for (int i = 0; i < whole; i += kLanes)
            store(y + i, load<F32>(weight + i) * (load<F32>(x + i) * splat(scale)));
        for (int i = whole; i < size; ++i) y[i] = weight[i] * (x[i] * scale);
    }

    void embed(int token, float* out) const {
        const uint8_t* panel = embedding_.panels + token / kLanes * embedding_.panel_bytes();
        const int lane = token % kLanes, hidden = shape_.hidden;
        for (int k = 0; k < hidden; ++k) out[k] = weight_at(embedding_.kind, panel, lane, k);
    }

    // Positions of token t's row, as (block's layer, token in the block).
    const uint8_t* layer_of(const Batch& batch, int layer, int row, int position, int& inside) const {
        const int block = position / cache_.block_tokens;
        inside = position % cache_.block_tokens;
        return cache_.region + batch.blocks[batch.block_starts[row] + block] +
               size_t(layer) * cache_.layer_items * cache_.item_bytes;
    }

    void rotate(float* head, const float* cosines, const float* sines) const {
        const int half = shape_.head_dim / 2;
        for (int i = 0; i < half; ++i) {
            const float a = head[i], b = head[i + half];
            head[i] = a * cosines[i] - b * sines[i];
            head[i + half] = b * cosines[i] + a * sines[i];
        }
    }

    static void put(float* to, float x) { *to = x; }
    static void put(uint16_t* to, float x) { *to = to_bf16(x); }

    template <class Number>
    void rotate_and_store(const Batch& batch, int layer, int token) {
        const int dim = shape_.head_dim, position = positions_[token], row = row_of_[token];
        const float* cosines = rope_ + size_t(position) * dim;
        const float* sines = cosines + dim / 2;
        float* q = qkv_.get() + size_t(token) * qkv_stride_;
        for (int h = 0; h < shape_.heads + shape_.kv_heads; ++h) {
            const float* weight = h < shape_.heads ? layers_[layer].query_norm : layers_[layer].key_norm;
            if (weight) norm(q + h * dim, weight, dim, q + h * dim);
            rotate(q + h * dim, cosines, sines);
        }
        if (position < batch.store_from[row]) return;
        int inside;
        Number* keys = (Number*)layer_of(batch, layer, row, position, inside);
        Number* values = keys + cache_.key_items;
        const float* k = q + shape_.heads * dim;
        const float* v = k + shape_.kv_heads * dim;
        const int groups = cache_.block_tokens / kLanes;
        for (int h = 0; h < shape_.kv_heads; ++h, k += dim, v += dim) {
            Number* key = keys + (size_t(h) * groups + inside / kLanes) * dim * kLanes + inside % kLanes;
            Number* value = values + (size_t(h) * cache_.block_tokens + inside) * dim;
            for (int d = 0; d < dim; ++d) put(key + d * kLanes, k[d]);
            for (int d = 0; d < dim; ++d) put(value + d, v[d]);
        }
    }

    template <class Number>
    void attend_block(const Batch& batch, int layer, const QueryBlock& block, int kv_head, int thread) {
        const int dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
        const AttentionShape shape{dim, cache_.block_tokens, cache_.key_items};
        AttentionScratch& s = attention_[thread];
        const float scale = 1.0f / std::sqrt(float(dim));
        const int groups = cache_.block_tokens / kLanes;
        const auto keys = [&](int position) {
            int inside;
            const auto* at = (const Number*)layer_of(batch, layer, block.row, position, inside);
            return at + (size_t(kv_head) * groups + inside / kLanes) * dim * kLanes;
        };
        const auto values = [&](int position) {
            int inside;
            const auto* at = (const Number*)layer_of(batch, layer, block.row, position, inside);
            return at + cache_.key_items + (size_t(kv_head) * cache_.block_tokens + inside) * dim;
        };
        // A group larger than the scratch is taken in parts.
        for (int head = 0; head < group; head += kQueries) {
            const int heads = group - head < kQueries ? group - head : kQueries;
            int queries = 0;
            for (int t = block.first; t < block.first + block.count; ++t)
                for (int h = 0; h < heads; ++h, ++queries) {
                    const float* q = qkv_.get() + size_t(t) * qkv_stride_ +
                                     (size_t(kv_head) * group + head + h) * dim;
                    for (int d = 0; d < dim; ++d) s.query[queries * dim + d] = q[d] * scale;
                    s.last[queries] = positions_[t];
                }
            attend<Number>(shape, s, queries, keys, values);
            queries = 0;
            for (int t = block.first; t < block.first + block.count; ++t)
                for (int h = 0; h < heads; ++h, ++queries)
                    std::memcpy(attended_.get() + size_t(t) * attention_stride_ +
                                    (size_t(kv_head) * group + head + h) * dim,
                                s.output + queries * dim, sizeof(float) * dim);
        }
    }

    Pool& pool_;
    const Shape shape_;
    const Linear embedding_, output_;
    const float* const final_norm_;
    const std::vector<LayerWeights> layers_;
    Cache cache_{};
    const float* rope_ = nullptr;  // [position][2][head_dim / 2]
    int hidden_stride_ = 0, qkv_stride_ = 0, attention_stride_ = 0, wide_stride_ = 0;
    Floats residual_, normed_, qkv_, attended_, wide_;
    std::vector<Floats> thread_memory_;
    std::vector<float*> scratch_;
    std::vector<AttentionScratch> attention_;
    std::vector<uint16_t> rounded_;
    std::vector<int32_t> positions_, row_of_;
    std::vector<QueryBlock> query_blocks_;
};

}  // namespace hr

// Everything Python calls. Pointers stay the caller's, and must live as long as what was made
// of them. A descriptor of a linear is five 64-bit numbers: kind, outputs, inputs, panels, bias.
extern "C" {

namespace {
hr::Linear linear_from(const int64_t* d) {
    return {hr::Kind(d[0]), int32_t(d[1]), int32_t(d[2]), (const uint8_t*)d[3], (const float*)d[4]};
}
}  // namespace

// Changes whenever a signature below does.
int32_t hr_interface() { return 2; }

int32_t hr_dots_bf16() { return hr::kDotsBf16; }

void* hr_pool_create(int32_t threads) { return new hr::Pool(threads); }

void hr_pool_destroy(void* pool) { delete (hr::Pool*)pool; }

int64_t hr_panels_bytes(int32_t kind, int32_t outputs, int32_t inputs) {
    const hr::Linear linear{hr::Kind(kind), outputs, inputs, nullptr, nullptr};
    return int64_t(linear.panel_bytes()) * linear.panel_count();
}

// Packs `rows` stored rows into the panels of `kind`: row i becomes output
// 16 * (panel_stride * (i / 16) + first_panel) + i % 16.
void hr_pack(void* pool, int32_t kind, int32_t format, const uint8_t* source, int64_t row_bytes,
             int32_t rows, int32_t inputs, uint8_t* panels, int32_t first_panel, int32_t panel_stride) {
    const hr::Linear linear{hr::Kind(kind), 0, inputs, nullptr, nullptr};
    hr::pack(*(hr::Pool*)pool, linear, format, source, row_bytes, rows, panels, first_panel, panel_stride);
}

// y[rows][y_stride] = x[rows][x_stride] * w, for tests and measurements. Strides are multiples
// of 32 numbers, and x is zero in its padding.
void hr_linear(void* pool, const int64_t* descriptor, int32_t rows, const float* x, int32_t x_stride,
               float* y, int32_t y_stride) {
    auto& p = *(hr::Pool*)pool;
    const auto linear = linear_from(descriptor);
    std::vector<std::vector<float>> memory(p.threads());
    std::vector<float*> scratch(p.threads());
    for (int i = 0; i < p.threads(); ++i) {
        memory[i].resize(size_t(linear.groups()) * hr::kGroup * 2 * hr::kLanes);
        scratch[i] = memory[i].data();
    }
    std::vector<uint16_t> rounded(hr::kDotsBf16 ? size_t(rows) * x_stride : 0);
    hr::run_linear<hr::Then::kStore>(p, linear, rows, x, x_stride, y, y_stride, scratch.data(), rounded.data());
}

// numbers: layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary.
// layers: for each, four pointers (norms; those of heads may be null) and four descriptors (qkv, output, gate_up, down).
void* hr_decoder_create(void* pool, const int32_t* numbers, float norm_epsilon, const int64_t* embedding,
                        const int64_t* output, const float* final_norm, const int64_t* layers) {
    hr::Shape shape{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6],
                    norm_epsilon};
    std::vector<hr::LayerWeights> weights;
    for (int i = 0; i < shape.layers; ++i, layers += 24)
        weights.push_back({(const float*)layers[0], (const float*)layers[1], (const float*)layers[2],
                           (const float*)layers[3], linear_from(layers + 4), linear_from(layers + 9),
                           linear_from(layers + 14), linear_from(layers + 19)});
    return new hr::Decoder(*(hr::Pool*)pool, shape, linear_from(embedding), linear_from(output), final_norm,
                           std::move(weights));
}

void hr_decoder_destroy(void* decoder) { delete (hr::Decoder*)decoder; }

void hr_decoder_start(void* decoder, int32_t tokens, int32_t outputs, uint8_t* region, int32_t block_tokens,
                      int32_t item_bytes, int64_t key_items, int64_t layer_items, const float* rope) {
    ((hr::Decoder*)decoder)
        ->start(tokens, outputs, {region, block_tokens, item_bytes, size_t(key_items), size_t(layer_items)}, rope);
}

void hr_decoder_run(void* decoder, const int32_t* tokens, const int32_t* offsets, const int32_t* begins,
                    const int64_t* blocks, const int32_t* block_starts, const int32_t* store_from,
                    int32_t rows, const int32_t* outputs, int32_t output_count, float* logits,
                    int32_t logits_stride) {
    ((hr::Decoder*)decoder)
        ->run({tokens, offsets, begins, blocks, block_starts, store_from, outputs, rows, output_count}, logits,
              logits_stride);
}

// For each row of logits: the index of the largest (the first of equals), and whether all are finite.
void hr_greedy(void* pool, const float* logits, int64_t stride, int32_t rows, int32_t vocabulary,
               int32_t* tokens, uint8_t* finite) {
    hr::greedy(*(hr::Pool*)pool, logits, stride, rows, vocabulary, tokens, finite);
}

// out[i] = the Gumbel noise of token ids 0 .. count under a key of two words.
void hr_gumbel(void* pool, uint32_t first, uint32_t second, int32_t count, float* out) {
    hr::gumbel(*(hr::Pool*)pool, first, second, count, out);
}
}
