// Causal attention of a step's tokens over paged keys and values, by online softmax (Milakov and Gimelshein, 2018).
//
// An item of work is one KV head and up to ROWS rows: the query heads that it serves, of some new tokens of one sequence. Keys come in
// groups of at most 16 of one block, GROUPS of them at a time:
//
//     scores = q K^T scale     top' = max(top, scores)     p = exp(scores - top')     sums = sums e + p V,  e = exp(top - top')
#pragma once

#include "attention_bf16.hpp"
#include "attention_f32.hpp"

// p: queries, keys, values, scales of keys, of values, out, first query head of each KV head (int32 [kv heads + 1]), log-sum-exp [T, heads]
//    or null   n: stride of queries, stride of out, kv heads, D, block, window or 0, most query heads of a KV head,
// ., whether out is fp32   f: scale
template <class T, class C>
struct Attend {
    using Products = ProductsOf<T, C>;

    const Op& op;
    const Step& step;
    const int64_t d, block;
    Products products;
    Rows rows;

    Attend(const Op& op_, const Step& step_) : op(op_), step(step_), d(op_.n[3]), block(op_.n[4]), products(op_.n[3], op_.n[4]) {}

    void run(int64_t sequence, int64_t head, int64_t tile) {
        const int32_t* first_head = (const int32_t*)op.p[6] + head;
        const int64_t group = first_head[1] - first_head[0], tokens_per_tile = tile_tokens(op);
        const int64_t begin = step.starts[sequence] + tile * tokens_per_tile;
        const int64_t left = step.starts[sequence + 1] - begin, tokens = left < tokens_per_tile ? left : tokens_per_tile;
        const int64_t before = step.lengths[sequence] - left;  // keys that precede the first of these tokens
        const int32_t* from = step.keys ? step.keys + begin : nullptr;
        rows.start(tokens * group, before, group, op.n[5], from, from ? from + step.queries : nullptr);
        products.start(rows.count);
        for (int64_t r = 0; r < rows.count; ++r)
            products.query(r, (const T*)op.p[0] + (begin + r / group) * op.n[0] + (first_head[0] + r % group) * d);
        const int64_t low = rows.low[0] > 0 ? rows.low[0] : 0, end = from ? from[step.queries + tokens - 1] : before + tokens;
        Groups now, next;
        for (int64_t key = find(sequence, head, low / block * block, end, now); now.count; now = next) {
            key = find(sequence, head, key, end, next);
            meet(now);
        }
        for (int64_t r = 0; r < rows.count; ++r) {
            const int64_t token = begin + r / group, h = first_head[0] + r % group;
            const int64_t to = token * op.n[1] + h * d;
            const float* sums = products.sums(r);
            const float inverse = rows.total[r] > 0.f ? 1.f / rows.total[r] : 0.f;
            if (op.n[8]) {
                for (int64_t i = 0; i < d; ++i) ((float*)op.p[5])[to + i] = sums[i] * inverse;
            } else {
                for (int64_t i = 0; i < d; ++i) narrow(sums[i] * inverse, ((T*)op.p[5])[to + i]);
            }
            if (op.p[7]) ((float*)op.p[7])[token * ((const int32_t*)op.p[6])[op.n[2]] + h] = rows.top[r] + std::log(rows.total[r]);
        }
    }

    struct Groups {
        Group<C> at[GROUPS];
        int count = 0;
    };

    // The groups of keys from `key` on, on their way into the cache; returns the first key behind them.
    int64_t find(int64_t sequence, int64_t head, int64_t key, int64_t end, Groups& out) {
        constexpr int64_t pair = pair_of<C>();
        const Cache cache{block, d, op.n[2]};
        for (out.count = 0; out.count < GROUPS && key < end; ++out.count) {
            const int64_t offset = key % block, at = step.tables[sequence * step.width + key / block] * op.n[2] + head;
            const int64_t in_block = block - offset < LANES ? block - offset : LANES;
            Group<C>& group = out.at[out.count];
            group.keys = (const C*)op.p[1] + at * cache.key_size(pair) + offset * pair;
            group.values = (const C*)op.p[2] + at * cache.value_size(pair) + offset / pair * pair * d;
            group.key_scales = op.p[3] ? (const float*)op.p[3] + at * block + offset : nullptr;
            group.value_scales = op.p[4] ? (const float*)op.p[4] + at * block + offset : nullptr;
            group.first = key;
            group.count = in_block < end - key ? in_block : end - key;
            for (int64_t i = 0; i < d; i += pair) __builtin_prefetch(group.keys + i * block);
            for (int64_t i = 0; i < group.count * d; i += 64 / int64_t(sizeof(C))) __builtin_prefetch(group.values + i);
            key += in_block;
        }
        return key;
    }

    void meet(const Groups& groups) {
        products.scores(groups.at, groups.count, rows);
        for (int64_t r = 0; r < rows.count; ++r) {
            for (int g = 0; g < groups.count; ++g) {
                const Group<C>& group = groups.at[g];
                rows.mask(r, g, group.first, group.count, group.key_scales, op.f[0]);
            }
            const float rescale = rows.softmax(r, groups.count * LANES);
            if (rescale != 1.f) products.rescale(r, rescale);
            for (int g = 0; g < groups.count; ++g) {
                if (groups.at[g].value_scales) rows.scale(r, g, groups.at[g].count, groups.at[g].value_scales);
            }
        }
        products.values(groups.at, groups.count, rows);
    }

    static int64_t tile_tokens(const Op& op) { return ROWS / op.n[6] > 1 ? ROWS / op.n[6] : 1; }
};

// `tiles` [sequences + 1]: how many tiles of tokens the sequences before have.
template <class T, class C>
void attend(const Op& op, const Step& step, Team& team, const int64_t* tiles) {
    static thread_local std::vector<char> memory;
    memory.resize(sizeof(Attend<T, C>) + 64);
    auto* attend = new ((void*)(((uintptr_t)memory.data() + 63) & ~uintptr_t(63))) Attend<T, C>(op, step);
    const int64_t heads = op.n[2];
    team.share(tiles[step.sequences] * heads, [&](int64_t item) {
        const int64_t tile = item / heads;
        const int64_t sequence = std::upper_bound(tiles, tiles + step.sequences, tile) - tiles - 1;
        attend->run(sequence, item % heads, tile - tiles[sequence]);
    });
}
