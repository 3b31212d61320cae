// Ops that look at each token alone: norms, embedding, gated product.
#pragma once

#include "numbers.hpp"
#include "records.hpp"
#include "team.hpp"

// x [T, H] -> out, rows of stride n1, n2.   p: x, out, weight, bias or null   n: H, stride of x, stride of out, layer norm   f: eps
template <class T>
void norm_row(const Op& op, const T* x, T* out) {
    const T *weight = (const T*)op.p[2], *bias = (const T*)op.p[3];
    const int64_t size = op.n[0];
    float sum = 0.f, squares = 0.f, mean = 0.f;
    if (op.n[3]) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < size; ++i) sum += widen(x[i]);
        mean = sum / size;
    }
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; ++i) {
        const float d = widen(x[i]) - mean;
        squares += d * d;
    }
    const float inverse = 1.f / std::sqrt(squares / size + op.f[0]);
    if (bias) {
        for (int64_t i = 0; i < size; ++i) narrow((widen(x[i]) - mean) * inverse * widen(weight[i]) + widen(bias[i]), out[i]);
    } else {
        for (int64_t i = 0; i < size; ++i) narrow((widen(x[i]) - mean) * inverse * widen(weight[i]), out[i]);
    }
}

// Of the wanted rows only where n4 is set: then row i of out is that of token wanted[i].
template <class T>
void norm(const Op& op, const Step& step, Team& team) {
    team.share(op.n[4] ? step.rows : step.tokens, [&](int64_t i) {
        const int64_t row = op.n[4] ? step.wanted[i] : i;
        norm_row<T>(op, (const T*)op.p[0] + row * op.n[1], (T*)op.p[1] + i * op.n[2]);
    });
}

// Rows of the table by id, zeros for ids that other ranks have.
// p: table, out, positions' table or null   n: H, first id, ids here, stride of out, packed (columns of it), out is fp32
template <class T>
void embed(const Op& op, const Step& step, Team& team) {
    const T *table = (const T*)op.p[0], *learned = (const T*)op.p[2];
    const int64_t size = op.n[0], packed = op.n[4];
    team.share(step.tokens, [&](int64_t t) {
        const int64_t id = step.ids[t] - op.n[1];
        const bool here = id >= 0 && id < op.n[2];
        const T* row = table + (packed ? packed_at(id, 0, packed) : id * size);
        const T* at = learned ? learned + step.positions[t] * size : nullptr;
        for (int64_t i = 0; i < size; ++i) {
            float x = here ? widen(row[packed ? packed_at(0, i, packed) : i]) : 0.f;
            if (at) x += widen(at[i]);
            if (op.n[5]) {
                ((float*)op.p[1])[t * op.n[3] + i] = x;
            } else {
                narrow(x, ((T*)op.p[1])[t * op.n[3] + i]);
            }
        }
    });
}

// silu(gate) * up of [T, gate | up], or gelu(up).   p: x, out   n: columns of out, stride of x, stride of out, gated
template <class T>
void act(const Op& op, const Step& step, Team& team) {
    constexpr int64_t PIECE = 512;
    const int64_t size = op.n[0], pieces = (size + PIECE - 1) / PIECE;
    team.share(step.tokens * pieces, [&](int64_t item) {
        const int64_t row = item / pieces, first = item % pieces * PIECE, end = first + PIECE < size ? first + PIECE : size;
        const T* x = (const T*)op.p[0] + row * op.n[1];
        T* out = (T*)op.p[1] + row * op.n[2];
        if (op.n[3]) {
            for (int64_t i = first; i < end; ++i) narrow(silu(widen(x[i])) * widen(x[i + size]), out[i]);
        } else {
            for (int64_t i = first; i < end; ++i) narrow(gelu_tanh(widen(x[i])), out[i]);
        }
    });
}
