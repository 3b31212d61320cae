// y = x W^T in bf16 with fp32 sums, for weights packed once: 16 rows of W side by side, two columns of them in each 32 bits.
//
//     packed [N / 32, K / 32, 2, 16, 16, 2]      its last three are both a tile of AMX and 16 times what 16 lanes of AVX512-BF16
//                                                multiply by one pair of x
//
// An item of work is 32 rows of W, which lie in memory as they are read, over so many rows of x that they stay in the cache.
#pragma once

#include "numbers.hpp"
#include "records.hpp"
#include "team.hpp"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAS_BF16_DOT 1
#else
#define HAS_BF16_DOT 0
#endif
#if HAS_BF16_DOT && defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#define HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

enum Ending : int64_t { STORE = 0, ADD = 1, STORE_F32 = 2, GATED = 3, GELU = 4 };

#if HAS_BF16_DOT
constexpr int AHEAD = 4096;

inline __m512bh as_bf16(__m512i x) { return (__m512bh)x; }

inline __m512 widen16(const Bf16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}

// exp(x) to a relative error below 2e-7, as exp_fast; 1 / x from 14 bits by a step of Newton's.
inline __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.f)), _mm512_set1_ps(88.f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1.f, 1.f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

inline __m512 reciprocal16(__m512 x) {
    const __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.f)));
}

inline __m512 silu16(__m512 x) {
    const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_mul_ps(x, reciprocal16(_mm512_add_ps(e, _mm512_set1_ps(1.f))));
}

inline void narrow16(Bf16* out, __m512 x, __mmask16 mask) { _mm256_mask_storeu_epi16(out, mask, (__m256i)_mm512_cvtneps_pbh(x)); }

// p: x [T, K], packed, out, bias (in the packed order, padded to 32s) or null   n: K (a multiple of 32), packed rows (of 32), stride of x,
// stride of out, columns of out, ending, wanted rows only (x has one row for each)
struct Linear {
    const Bf16 *x, *packed, *bias;
    void* out;
    int64_t k, stride, out_stride, columns, ending;

    explicit Linear(const Op& op)
        : x((const Bf16*)op.p[0]), packed((const Bf16*)op.p[1]), bias((const Bf16*)op.p[3]), out((void*)op.p[2]), k(op.n[0]),
          stride(op.n[2]), out_stride(op.n[3]), columns(op.n[4]), ending(op.n[5]) {}

    // Columns 32 pair .. + 32 of one row, still as two vectors of sums.
    void end(int64_t row, int64_t pair, __m512 a, __m512 b) const {
        if (bias) {
            a = _mm512_add_ps(a, widen16(bias + pair * 32));
            b = _mm512_add_ps(b, widen16(bias + pair * 32 + 16));
        }
        if (ending == GATED) return put(row, pair * 16, _mm512_mul_ps(silu16(a), b));
        put(row, pair * 32, a);
        put(row, pair * 32 + 16, b);
    }

    void put(int64_t row, int64_t column, __m512 x) const {
        const int64_t left = columns - column;
        if (left <= 0) return;
        const __mmask16 mask = left >= 16 ? 0xffff : __mmask16((1u << left) - 1);
        if (ending == STORE_F32) {
            _mm512_mask_storeu_ps((float*)out + row * out_stride + column, mask, x);
            return;
        }
        Bf16* to = (Bf16*)out + row * out_stride + column;
        if (ending == ADD) {
            const __m256i old = _mm256_maskz_loadu_epi16(mask, to);
            x = _mm512_add_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(old), 16)));
        } else if (ending == GELU) {
            alignas(64) float values[16];
            _mm512_store_ps(values, x);
            for (int i = 0; i < 16; ++i) values[i] = gelu_tanh(values[i]);
            x = _mm512_load_ps(values);
        }
        narrow16(to, x, mask);
    }
};

// R rows of x by 32 rows of W, two sums per row and half: enough of them in flight to hide the latency of a product.
template <int R>
void dot_rows(const Linear& op, int64_t row, int64_t pair) {
    constexpr int WAYS = R == 1 ? 4 : (R == 2 ? 2 : 1);
    const int64_t pairs = op.k / 2;
    const Bf16* w = op.packed + pair * op.k * 32;
    __m512 sums[R][2][WAYS];
    for (auto& r : sums)
        for (auto& half : r)
            for (auto& way : half) way = _mm512_setzero_ps();
    for (int64_t i = 0; i < pairs; i += WAYS) {
        for (int way = 0; way < WAYS; ++way) {
            const Bf16* at = w + (i + way) / 16 * 1024 + (i + way) % 16 * 32;
            _mm_prefetch((const char*)at + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char*)(at + 512) + AHEAD, _MM_HINT_T0);
            const __m512bh a = as_bf16(_mm512_loadu_si512(at)), b = as_bf16(_mm512_loadu_si512(at + 512));
            for (int r = 0; r < R; ++r) {
                int32_t both;
                std::memcpy(&both, op.x + (row + r) * op.stride + 2 * (i + way), 4);
                const __m512bh x = as_bf16(_mm512_set1_epi32(both));
                sums[r][0][way] = _mm512_dpbf16_ps(sums[r][0][way], x, a);
                sums[r][1][way] = _mm512_dpbf16_ps(sums[r][1][way], x, b);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int way = 1; way < WAYS; ++way) {
            sums[r][0][0] = _mm512_add_ps(sums[r][0][0], sums[r][0][way]);
            sums[r][1][0] = _mm512_add_ps(sums[r][1][0], sums[r][1][way]);
        }
        op.end(row + r, pair, sums[r][0][0], sums[r][1][0]);
    }
}

inline void dot_block(const Linear& op, int64_t first, int64_t end, int64_t pair) {
    int64_t row = first;
    for (; end - row >= 8; row += 8) dot_rows<8>(op, row, pair);
    for (; end - row >= 4; row += 4) dot_rows<4>(op, row, pair);
    for (; end - row >= 2; row += 2) dot_rows<2>(op, row, pair);
    if (row < end) dot_rows<1>(op, row, pair);
}
#endif

#if HAS_TILES
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int height, int bytes) {
        rows[tile] = uint8_t(height);
        row_bytes[tile] = uint16_t(bytes);
    }
};

// The compiler's own tile intrinsics do not say that they read memory: what was stored before must be there.
inline void stored_before() { asm volatile("" ::: "memory"); }

inline void load_shapes(const TileShapes& shapes) {
    asm volatile("" : : "m"(shapes));
    stored_before();
    _tile_loadconfig(&shapes);
}

// Linux gives a process its tiles when it asks for them.
inline bool tiles_ready() {
    static const bool ready = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return ready;
}

// Tiles 0 1 / 2 3: sums of two times 16 rows of x (the second `low` high) by two times 16 rows of W; 4 5: x; 6 7: W.
inline void set_tiles(int high, int low) {
    TileShapes shapes;
    for (int tile : {0, 1, 4}) shapes.set(tile, high, 64);
    for (int tile : {2, 3, 5}) shapes.set(tile, low ? low : 1, 64);
    for (int tile : {6, 7}) shapes.set(tile, 16, 64);
    load_shapes(shapes);
}

template <bool TWO, bool FETCH>
void tile_rows(const Linear& op, int64_t row, int64_t pair, int high, int low) {
    const Bf16* w = op.packed + pair * op.k * 32;
    const Bf16 *x0 = op.x + row * op.stride, *x1 = x0 + 16 * op.stride;
    stored_before();
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) _tile_zero(2);
    if (TWO) _tile_zero(3);
    for (int64_t i = 0; i < op.k; i += 32) {
        if (FETCH) {
            for (int line = 0; line < 32; ++line) _mm_prefetch((const char*)(w + i * 32) + AHEAD + 64 * line, _MM_HINT_T0);
        }
        _tile_loadd(4, x0 + i, op.stride * 2);
        _tile_loadd(6, w + i * 32, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + i * 32 + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (TWO) {
            _tile_loadd(5, x1 + i, op.stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    alignas(64) float sums[4][16][16];
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    if (TWO) _tile_stored(2, sums[2], 64);
    if (TWO) _tile_stored(3, sums[3], 64);
    for (int r = 0; r < high; ++r) op.end(row + r, pair, _mm512_load_ps(sums[0][r]), _mm512_load_ps(sums[1][r]));
    for (int r = 0; TWO && r < low; ++r) op.end(row + 16 + r, pair, _mm512_load_ps(sums[2][r]), _mm512_load_ps(sums[3][r]));
}

inline void tile_block(const Linear& op, int64_t first, int64_t end, int64_t pair) {
    int64_t row = first;
    if (end - row >= 32) set_tiles(16, 16);
    for (; end - row >= 32; row += 32) {
        if (row == first) {
            tile_rows<true, true>(op, row, pair, 16, 16);
        } else {
            tile_rows<true, false>(op, row, pair, 16, 16);
        }
    }
    const int left = int(end - row);
    if (!left) return;
    set_tiles(left < 16 ? left : 16, left > 16 ? left - 16 : 0);
    if (left > 16) {
        tile_rows<true, true>(op, row, pair, 16, left - 16);
    } else {
        tile_rows<false, true>(op, row, pair, left, 0);
    }
}
#endif

inline void linear(const Op& op, const Step& step, Team& team) {
#if HAS_BF16_DOT
    const Linear product(op);
    const int64_t ROWS = product.k <= 768 ? 512 : 256;
    const int64_t rows = op.n[6] ? step.rows : step.tokens, pairs = op.n[1] / 32;
    if (!rows) return;
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    team.share(blocks * pairs, [&](int64_t item) {
        const int64_t first = item / pairs * ROWS, end = first + ROWS < rows ? first + ROWS : rows;
#if HAS_TILES
        if (rows > 2 && tiles_ready()) return tile_block(product, first, end, item % pairs);
#endif
        dot_block(product, first, end, item % pairs);
    });
#endif
}
