// The products of attention in fp32, whatever the cache holds: for fp32 models and for CPUs without products of bf16.
#pragma once

#include "attention_rows.hpp"
#include "rotate.hpp"

template <class C>
struct ProductsF32 {
    int64_t d, block;
    alignas(64) float q[ROWS][MAX_HEAD_DIM], acc[ROWS][MAX_HEAD_DIM], wide[MAX_HEAD_DIM * LANES];

    ProductsF32(int64_t d_, int64_t block_) : d(d_), block(block_) {}

    void start(int64_t rows) { std::memset(acc, 0, sizeof(acc[0]) * rows); }

    template <class T>
    void query(int64_t r, const T* from) {
        for (int64_t i = 0; i < d; ++i) q[r][i] = widen(from[i]);
    }

    void scores(const Group<C>* groups, int count, Rows& rows) {
        constexpr int64_t pair = pair_of<C>();
        for (int g = 0; g < count; ++g) {
            for (int64_t i = 0; i < d; ++i) {
                const C* from = groups[g].keys + i / pair * block * pair + i % pair;
                for (int64_t j = 0; j < LANES; ++j) wide[i * LANES + j] = j < groups[g].count ? widen(from[j * pair]) : 0.f;
            }
            for (int64_t r = 0; r < rows.count; ++r) {
                float sums[LANES] = {};
                for (int64_t i = 0; i < d; ++i) {
                    for (int64_t j = 0; j < LANES; ++j) sums[j] += q[r][i] * wide[i * LANES + j];
                }
                for (int64_t j = 0; j < LANES; ++j) rows.scores[r][g * LANES + j] = sums[j];
            }
        }
    }

    void rescale(int64_t r, float by) {
        for (int64_t i = 0; i < d; ++i) acc[r][i] *= by;
    }

    void values(const Group<C>* groups, int count, const Rows& rows) {
        constexpr int64_t pair = pair_of<C>();
        for (int g = 0; g < count; ++g) {
            for (int64_t j = 0; j < groups[g].count; ++j) {
                const C* from = groups[g].values + j / pair * pair * d + j % pair;
                for (int64_t i = 0; i < d; ++i) wide[i] = widen(from[i * pair]);
                for (int64_t r = 0; r < rows.count; ++r) {
                    const float p = rows.scores[r][g * LANES + j];
                    for (int64_t i = 0; i < d; ++i) acc[r][i] += p * wide[i];
                }
            }
        }
    }

    const float* sums(int64_t r) const { return acc[r]; }
};
