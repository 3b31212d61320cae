// Number formats: how each is stored, widened to fp32 and narrowed again, all by round to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum Format : int32_t { F32 = 0, BF16 = 1, I8 = 2, F8 = 3 };

struct Bf16 {
    uint16_t bits;
};
struct Fp8 {
    uint8_t bits;
};

inline float bits_to_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float widen(float x) { return x; }
inline float widen(Bf16 x) { return bits_to_float(uint32_t(x.bits) << 16); }
inline float widen(int8_t x) { return float(x); }

// e4m3fn: exponent bias 7, no infinity; 0x7f is NaN and never stored here. The product places subnormals too.
inline float widen(Fp8 x) {
    const float magnitude = bits_to_float(uint32_t(x.bits & 0x7f) << 20) * 0x1p120f;
    return x.bits & 0x80 ? -magnitude : magnitude;
}

inline void narrow(float x, float& out) { out = x; }

inline void narrow(float x, Bf16& out) {
    const uint32_t bits = float_to_bits(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out.bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);  // a NaN stays one
}

inline void narrow(float x, int8_t& out) { out = int8_t(std::nearbyint(std::fmin(std::fmax(x, -127.f), 127.f))); }

inline void narrow(float x, Fp8& out) {
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    const float magnitude = std::fmin(std::fabs(x), 448.f);
    if (magnitude < 0x1p-6f) {  // subnormal: steps of 2^-9
        out.bits = sign | uint8_t(std::nearbyint(magnitude * 0x1p9f));
        return;
    }
    const uint32_t bits = float_to_bits(magnitude);
    const uint32_t rounded = bits + 0x7ffff + ((bits >> 20) & 1);
    out.bits = sign | uint8_t((rounded >> 20) - (120 << 3));
}

// Where element (row, column) of a packed weight of k columns lies (matmul.hpp).
inline int64_t packed_at(int64_t row, int64_t column, int64_t k) {
    return row / 32 * 32 * k + column / 32 * 1024 + row % 32 / 16 * 512 + column % 32 / 2 * 32 + row % 16 * 2 + column % 2;
}

// The largest magnitude that a scale maps to.
inline float top(float) { return 0.f; }
inline float top(Bf16) { return 0.f; }
inline float top(int8_t) { return 127.f; }
inline float top(Fp8) { return 448.f; }

// exp(x) for x <= 0 or not far above, relative error below 2e-7: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes' expf).
inline float exp_fast(float x) {
    x = x < -87.f ? -87.f : (x > 88.f ? 88.f : x);
    const float shifted = x * 1.44269504f + 12582912.f;
    const float n = shifted - 12582912.f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    return p * bits_to_float(uint32_t(int32_t(n) + 127) << 23);
}

inline float silu(float x) { return x / (1.f + exp_fast(-x)); }

inline float gelu_tanh(float x) {  // x / (1 + exp(-2 u)) = x (1 + tanh u) / 2
    const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return x / (1.f + exp_fast(-2.f * u));
}
