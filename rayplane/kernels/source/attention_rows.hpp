// The rows of an item of attention: which keys each may see, and the state of its softmax.
#pragma once

#include <cmath>
#include <cstdint>

#include "numbers.hpp"

constexpr int64_t ROWS = 32, LANES = 16, GROUPS = 4, KEYS = LANES * GROUPS, MAX_HEAD_DIM = 256;

// Up to 16 keys of one block and their values.
template <class C>
struct Group {
    const C *keys, *values;
    const float *key_scales, *value_scales;
    int64_t first, count;
};

struct Rows {
    int64_t count, low[ROWS], high[ROWS];  // keys seen: low .. high
    float top[ROWS], total[ROWS];
    alignas(64) float scores[ROWS][KEYS];  // then the exponentials

    // Row r sees from[r / group] .. to[r / group] - 1, or, where they are null, up to itself, which `before` keys and rows precede.
    void start(int64_t count_, int64_t before, int64_t group, int64_t window, const int32_t* from, const int32_t* to) {
        count = count_;
        for (int64_t r = 0; r < count; ++r) {
            high[r] = to ? to[r / group] - 1 : before + r / group;
            low[r] = from ? from[r / group] : window ? high[r] - window + 1 : 0;
            top[r] = -INFINITY;
            total[r] = 0.f;
        }
    }

    // Scales a group's scores and takes out what this row does not see.
    void mask(int64_t r, int g, int64_t first, int64_t keys, const float* key_scales, float scale) {
        float* s = scores[r] + g * LANES;
        for (int64_t j = 0; j < LANES; ++j) s[j] *= scale;
        if (key_scales) {
            for (int64_t j = 0; j < keys; ++j) s[j] *= key_scales[j];
        }
        if (keys == LANES && first >= low[r] && first + LANES - 1 <= high[r]) return;
        for (int64_t j = 0; j < LANES; ++j) s[j] = j < keys && first + j >= low[r] && first + j <= high[r] ? s[j] : -INFINITY;
    }

    // Scores to exponentials; returns what earlier sums are to be multiplied by.
    float softmax(int64_t r, int64_t keys) {
        float* s = scores[r];
        float largest = top[r], sum = 0.f;
#pragma omp simd reduction(max : largest)
        for (int64_t j = 0; j < keys; ++j) largest = s[j] > largest ? s[j] : largest;
        if (largest == -INFINITY) {
            for (int64_t j = 0; j < keys; ++j) s[j] = 0.f;
            return 1.f;
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < keys; ++j) {
            s[j] = exp_fast(s[j] - largest);
            sum += s[j];
        }
        const float rescale = top[r] == largest ? 1.f : exp_fast(top[r] - largest);
        top[r] = largest;
        total[r] = total[r] * rescale + sum;
        return rescale;
    }

    void scale(int64_t r, int g, int64_t keys, const float* scales) {
        for (int64_t j = 0; j < keys; ++j) scores[r][g * LANES + j] *= scales[j];
    }
};
