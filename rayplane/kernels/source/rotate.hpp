// Norms and rotates the queries in place, norms and rotates the keys, and puts keys and values into their slots of the cache.
//
//     keys    [blocks, kv heads, D / pair, block, pair]      16 keys side by side: a query meets them all at once
//     values  [blocks, kv heads, block / pair, D, pair]      pair: 1 for fp32, else 2, as products of bf16 take them
#pragma once

#include <vector>

#include "numbers.hpp"
#include "records.hpp"
#include "team.hpp"

struct Cache {
    int64_t block, head_dim, kv_heads;

    int64_t half(int64_t n, int64_t pair) const { return (n + pair - 1) / pair; }
    int64_t key_size(int64_t pair) const { return half(head_dim, pair) * block * pair; }
    int64_t value_size(int64_t pair) const { return half(block, pair) * head_dim * pair; }
};

template <class C>
constexpr int64_t pair_of() {
    return sizeof(C) == 4 ? 1 : 2;
}

// x rotated by the angles of its position, each pair (x[i], x[i + D/2]); normed before where a weight is given.
template <class T>
void turn(const T* x, float* out, int64_t d, const T* weight, float eps, const float* cos, const float* sin) {
    float inverse = 1.f;
    if (weight) {
        float squares = 0.f;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < d; ++i) squares += widen(x[i]) * widen(x[i]);
        inverse = 1.f / std::sqrt(squares / d + eps);
    }
    for (int64_t i = 0; i < d; ++i) out[i] = widen(x[i]) * inverse * (weight ? widen(weight[i]) : 1.f);
    if (!cos) return;
    const int64_t half = d / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float a = out[i], b = out[i + half];
        out[i] = a * cos[i] - b * sin[i];
        out[i + half] = b * cos[i] + a * sin[i];
    }
}

// What to multiply a head by before it is stored; keeps the scale that undoes it.
template <class C>
float scaled(const float* x, int64_t d, float* scales, int64_t at) {
    if (top(C{}) == 0.f) return 1.f;
    float largest = 0.f;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < d; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    scales[at] = largest > 0.f ? largest / top(C{}) : 1.f;
    return 1.f / scales[at];
}

// p: qkv, keys, values, scales of keys, of values, angles [positions, cos | sin] or null, norm of q, of k or null
// n: stride of qkv, heads, kv heads, D, block   f: eps
template <class T, class C>
void rotate(const Op& op, const Step& step, Team& team) {
    const int64_t heads = op.n[1], kv = op.n[2], d = op.n[3];
    constexpr int64_t pair = pair_of<C>();
    const Cache cache{op.n[4], d, kv};
    team.share(step.tokens, [&](int64_t t) {
        T* row = (T*)op.p[0] + t * op.n[0];
        const float* cos = op.p[5] ? (const float*)op.p[5] + step.positions[t] * d : nullptr;
        const float* sin = cos ? cos + d / 2 : nullptr;
        float turned[512];
        if (cos || op.p[6]) {
            for (int64_t h = 0; h < heads; ++h) {
                turn(row + h * d, turned, d, (const T*)op.p[6], op.f[0], cos, sin);
                for (int64_t i = 0; i < d; ++i) narrow(turned[i], row[h * d + i]);
            }
        }
        const int64_t block = step.slots[t] / cache.block, offset = step.slots[t] % cache.block;
        for (int64_t h = 0; h < kv; ++h) {
            const int64_t head = block * kv + h;
            turn(row + (heads + h) * d, turned, d, (const T*)op.p[7], op.f[0], cos, sin);
            C* key = (C*)op.p[1] + head * cache.key_size(pair) + offset * pair;
            float inverse = scaled<C>(turned, d, (float*)op.p[3], head * cache.block + offset);
            for (int64_t i = 0; i < d; ++i) narrow(turned[i] * inverse, key[i / pair * pair * cache.block + i % pair]);
            const T* from = row + (heads + kv + h) * d;
            for (int64_t i = 0; i < d; ++i) turned[i] = widen(from[i]);
            C* value = (C*)op.p[2] + head * cache.value_size(pair) + offset / pair * pair * d + offset % pair;
            inverse = scaled<C>(turned, d, (float*)op.p[4], head * cache.block + offset);
            for (int64_t i = 0; i < d; ++i) narrow(turned[i] * inverse, value[i * pair]);
        }
    });
}
