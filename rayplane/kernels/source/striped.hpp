// Attention over keys that cp ranks of one host keep: queries lie where all see them, and each rank merges what all say of its own.
//
//     offer    own queries into their places, then the ranks meet        attend    all queries over this rank's keys (attention.hpp)
//     merge    the ranks meet, then out = sum of e^(lse - top) parts / sum of e^(lse - top) over ranks, top: the largest lse
#pragma once

#include "shared.hpp"

// p: header, qkv, queries, ., failure   n: width, rank, ranks, stride of qkv, stride of queries   f: timeout in s
template <class T>
void offer(const Op& op, const Step& step, Team& team, bool first_thread) {
    team.share(step.tokens, [&](int64_t t) {
        std::memcpy((T*)op.p[2] + (step.first + t) * op.n[4], (const T*)op.p[1] + t * op.n[3], op.n[0] * sizeof(T));
    });
    meet(op, team, first_thread);
}

// p: header, parts [ranks, queries, width] fp32, lse [ranks, queries, heads] fp32, out, failure
// n: width, rank, ranks, heads, stride of out, most queries   f: timeout in s
template <class T>
void merge(const Op& op, const Step& step, Team& team, bool first_thread) {
    if (!meet(op, team, first_thread)) return;
    const int64_t width = op.n[0], ranks = op.n[2], heads = op.n[3], most = op.n[5], d = heads ? width / heads : 0;
    team.share(step.tokens, [&](int64_t t) {
        const float* parts = (const float*)op.p[1] + (step.first + t) * width;
        const float* lse = (const float*)op.p[2] + (step.first + t) * heads;
        T* out = (T*)op.p[3] + t * op.n[4];
        for (int64_t h = 0; h < heads; ++h) {
            float top = -INFINITY, total = 0.f, weights[MAX_RANKS];
            for (int64_t r = 0; r < ranks; ++r) top = std::fmax(top, lse[r * most * heads + h]);
            for (int64_t r = 0; r < ranks; ++r) total += weights[r] = std::exp(lse[r * most * heads + h] - top);
            for (int64_t i = h * d; i < (h + 1) * d; ++i) {
                float sum = 0.f;
                for (int64_t r = 0; r < ranks; ++r) sum += weights[r] * parts[r * most * width + i];
                narrow(sum / total, out[i]);
            }
        }
    });
}
