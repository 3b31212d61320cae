// The products of attention by AVX512-BF16, and by AMX where there are rows enough: two bf16 at a time, sums in fp32.
#pragma once

#include "attention_f32.hpp"
#include "matmul.hpp"

#if HAS_BF16_DOT
inline __m512i widen32(const Bf16* x) { return _mm512_loadu_si512(x); }

// 32 numbers of one byte as bf16: each is exact.
inline __m512i widen32(const int8_t* x) {
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)x)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)x + 1)));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

inline __m512 widen_fp8(__m128i bytes) {
    const __m512i bits = _mm512_cvtepu8_epi32(bytes);
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7f)), 20);
    const __m512 x = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x80)), 24);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(x), sign));
}

inline __m512i widen32(const Fp8* x) {
    const __m128i* bytes = (const __m128i*)x;
    return (__m512i)_mm512_cvtne2ps_pbh(widen_fp8(_mm_loadu_si128(bytes + 1)), widen_fp8(_mm_loadu_si128(bytes)));
}

template <class C>
struct ProductsBf16 {
    int64_t d, block, halves, vectors;
    bool tiles = false;
    alignas(64) Bf16 q[ROWS][MAX_HEAD_DIM];
    alignas(64) float acc[ROWS][MAX_HEAD_DIM];
    alignas(64) Bf16 p[ROWS][KEYS];
    alignas(64) Bf16 wide_keys[GROUPS][MAX_HEAD_DIM * LANES], wide_values[GROUPS][MAX_HEAD_DIM * LANES];
    const Bf16 *keys[GROUPS], *vals[GROUPS];
    int64_t key_stride;

    ProductsBf16(int64_t d_, int64_t block_) : d(d_), block(block_), halves((d_ + 1) / 2), vectors((d_ + 15) / 16) {
        std::memset(q, 0, sizeof(q));
        std::memset(acc, 0, sizeof(acc));
    }

    void start(int64_t rows) {
        std::memset(acc, 0, sizeof(acc[0]) * rows);
#if HAS_TILES
        tiles = rows > 8 && d % 32 == 0 && block % 16 == 0 && tiles_ready();
        if (tiles) set_attention_tiles();
#endif
    }

    template <class T>
    void query(int64_t r, const T* from) {
        std::memcpy(q[r], from, d * sizeof(Bf16));
    }

    void rescale(int64_t r, float by) {
        for (int64_t i = 0; i < vectors * 16; ++i) acc[r][i] *= by;
    }

    const float* sums(int64_t r) const { return acc[r]; }

    // Where the cache holds bytes, the groups are widened first.
    void scores(const Group<C>* groups, int count, Rows& rows) {
        key_stride = sizeof(C) == 2 ? block * 2 : LANES * 2;
        for (int g = 0; g < count; ++g) {
            if constexpr (sizeof(C) == 2) {
                keys[g] = groups[g].keys;
                vals[g] = groups[g].values;
            } else {
                for (int64_t i = 0; i < halves; ++i) _mm512_store_si512(wide_keys[g] + i * 32, widen32(groups[g].keys + i * block * 2));
                const int64_t size = (groups[g].count + 1) / 2 * 2 * d;
                for (int64_t i = 0; i < size; i += 32) _mm512_store_si512(wide_values[g] + i, widen32(groups[g].values + i));
                keys[g] = wide_keys[g];
                vals[g] = wide_values[g];
            }
        }
#if HAS_TILES
        if (tiles) return tile_scores(count, rows);
#endif
        int64_t r = 0;
        for (; rows.count - r >= 8; r += 8) dot_scores<8>(r, count, rows);
        for (; rows.count - r >= 3; r += 3) dot_scores<3>(r, count, rows);
        for (; r < rows.count; ++r) dot_scores<1>(r, count, rows);
    }

    template <int R>
    void dot_scores(int64_t row, int count, Rows& rows) {
        for (int g = 0; g < count; g += 2) {
            const Bf16 *a = keys[g], *b = g + 1 < count ? keys[g + 1] : a;
            __m512 sums[R][2];
            for (auto& s : sums) s[0] = s[1] = _mm512_setzero_ps();
            for (int64_t i = 0; i < halves; ++i) {
                const __m512bh ka = as_bf16(_mm512_loadu_si512(a + i * key_stride)), kb = as_bf16(_mm512_loadu_si512(b + i * key_stride));
                for (int r = 0; r < R; ++r) {
                    const __m512bh x = both(q[row + r] + 2 * i);
                    sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, ka);
                    sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, kb);
                }
            }
            for (int r = 0; r < R; ++r) {
                _mm512_store_ps(rows.scores[row + r] + g * LANES, sums[r][0]);
                if (g + 1 < count) _mm512_store_ps(rows.scores[row + r] + (g + 1) * LANES, sums[r][1]);
            }
        }
    }

    void values(const Group<C>* groups, int count, const Rows& rows) {
        for (int64_t r = 0; r < rows.count; ++r) {
            for (int g = 0; g < count; ++g) narrow16(p[r] + g * LANES, _mm512_load_ps(rows.scores[r] + g * LANES), 0xffff);
        }
#if HAS_TILES
        if (tiles) return tile_values(count, rows);
#endif
        int64_t r = 0;
        for (; rows.count - r >= 8; r += 8) dot_values<8>(r, groups, count);
        for (; rows.count - r >= 3; r += 3) dot_values<3>(r, groups, count);
        for (; r < rows.count; ++r) dot_values<1>(r, groups, count);
    }

    template <int R>
    void dot_values(int64_t row, const Group<C>* groups, int count) {
        for (int64_t v = 0; v < vectors; v += 2) {
            const int64_t next = v + 1 < vectors ? v + 1 : v;  // the last one twice where they are odd
            __m512 sums[R][2];
            for (int r = 0; r < R; ++r) {
                sums[r][0] = _mm512_load_ps(acc[row + r] + v * 16);
                sums[r][1] = _mm512_load_ps(acc[row + r] + next * 16);
            }
            for (int g = 0; g < count; ++g) {
                for (int64_t i = 0; 2 * i < groups[g].count; ++i) {
                    const Bf16* at = vals[g] + i * 2 * d;
                    const __m512bh va = as_bf16(_mm512_loadu_si512(at + v * 32)), vb = as_bf16(_mm512_loadu_si512(at + next * 32));
                    for (int r = 0; r < R; ++r) {
                        const __m512bh x = both(p[row + r] + g * LANES + 2 * i);
                        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, va);
                        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, vb);
                    }
                }
            }
            for (int r = 0; r < R; ++r) {
                _mm512_store_ps(acc[row + r] + v * 16, sums[r][0]);
                _mm512_store_ps(acc[row + r] + next * 16, sums[r][1]);
            }
        }
    }

    static __m512bh both(const Bf16* x) {
        int32_t pair;
        std::memcpy(&pair, x, 4);
        return as_bf16(_mm512_set1_epi32(pair));
    }

#if HAS_TILES
    // Tiles 0-3: sums; 4: queries, 5: keys, 16 pairs of elements high; 6: exponentials of 16 keys, 7: values, 8 pairs of keys high.
    static void set_attention_tiles() {
        TileShapes shapes;
        for (int tile = 0; tile < 6; ++tile) shapes.set(tile, 16, 64);
        shapes.set(6, 16, 32);
        shapes.set(7, 8, 64);
        load_shapes(shapes);
    }

    void tile_scores(int count, Rows& rows) {
        const int64_t stride = key_stride * 2;
        stored_before();
        for (int64_t row = 0; row < rows.count; row += 16) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t i = 0; i < d; i += 32) {
                _tile_loadd(4, q[row] + i, MAX_HEAD_DIM * 2);
                const int64_t at = i / 2 * key_stride;
                for (int g = 0; g < count; ++g) {
                    _tile_loadd(5, keys[g] + at, stride);
                    if (g == 0) _tile_dpbf16ps(0, 4, 5);
                    if (g == 1) _tile_dpbf16ps(1, 4, 5);
                    if (g == 2) _tile_dpbf16ps(2, 4, 5);
                    if (g == 3) _tile_dpbf16ps(3, 4, 5);
                }
            }
            _tile_stored(0, rows.scores[row], KEYS * 4);
            _tile_stored(1, rows.scores[row] + 16, KEYS * 4);
            _tile_stored(2, rows.scores[row] + 32, KEYS * 4);
            _tile_stored(3, rows.scores[row] + 48, KEYS * 4);
        }
    }

    void tile_values(int count, const Rows& rows) {
        stored_before();
        for (int64_t row = 0; row < rows.count; row += 16) {
            for (int64_t i = 0; i < d; i += 32) {
                _tile_loadd(0, acc[row] + i, MAX_HEAD_DIM * 4);
                _tile_loadd(1, acc[row] + i + 16, MAX_HEAD_DIM * 4);
                for (int g = 0; g < count; ++g) {
                    _tile_loadd(6, p[row] + g * LANES, KEYS * 2);
                    _tile_loadd(7, vals[g] + i * 2, d * 4);
                    _tile_dpbf16ps(0, 6, 7);
                    _tile_loadd(7, vals[g] + i * 2 + 32, d * 4);
                    _tile_dpbf16ps(1, 6, 7);
                }
                _tile_stored(0, acc[row] + i, MAX_HEAD_DIM * 4);
                _tile_stored(1, acc[row] + i + 16, MAX_HEAD_DIM * 4);
            }
        }
    }
#endif
};
#endif

template <class T, class C>
struct Chosen {
    using Products = ProductsF32<C>;
};
#if HAS_BF16_DOT
template <>
struct Chosen<Bf16, Bf16> {
    using Products = ProductsBf16<Bf16>;
};
template <>
struct Chosen<Bf16, int8_t> {
    using Products = ProductsBf16<int8_t>;
};
template <>
struct Chosen<Bf16, Fp8> {
    using Products = ProductsBf16<Fp8>;
};
#endif
template <class T, class C>
using ProductsOf = typename Chosen<T, C>::Products;
