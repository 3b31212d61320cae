// Runs a program: the threads go through its ops together. The C interface that records.py calls.

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "attention.hpp"
#include "pointwise.hpp"
#include "shared.hpp"
#include "striped.hpp"
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

template <class T>
void rotate_into(const Op& op, const Step& step, Team& team) {
    switch (op.n[5]) {
        case F32: return rotate<T, float>(op, step, team);
        case BF16: return rotate<T, Bf16>(op, step, team);
        case I8: return rotate<T, int8_t>(op, step, team);
        case F8: return rotate<T, Fp8>(op, step, team);
    }
}

template <class T>
void attend_over(const Op& op, const Step& step, Team& team, const int64_t* tiles) {
    switch (op.n[7]) {
        case F32: return attend<T, float>(op, step, team, tiles);
        case BF16: return attend<T, Bf16>(op, step, team, tiles);
        case I8: return attend<T, int8_t>(op, step, team, tiles);
        case F8: return attend<T, Fp8>(op, step, team, tiles);
    }
}

template <class T>
void run_op(const Op& op, const Step& step, Team& team, const int64_t* tiles, bool first_thread) {
    switch (op.kind) {
        case NORM: return norm<T>(op, step, team);
        case LINEAR: return linear(op, step, team);
        case EMBED: return embed<T>(op, step, team);
        case ROTATE: return rotate_into<T>(op, step, team);
        case ATTEND: return attend_over<T>(op, step, team, tiles);
        case ACT: return act<T>(op, step, team);
        case SUM: return sum<T>(op, step, team, first_thread);
        case OFFER: return offer<T>(op, step, team, first_thread);
        case MERGE: return merge<T>(op, step, team, first_thread);
    }
}

// Tiles of tokens that the sequences before have, for the attention of a program (of one shape in all of it).
std::vector<int64_t> tiles_of(const Op* ops, int64_t num_ops, const Step& step) {
    std::vector<int64_t> tiles(step.sequences + 1, 0);
    for (int64_t i = 0; i < num_ops; ++i) {
        if (ops[i].kind != ATTEND) continue;
        const int64_t size = Attend<float, float>::tile_tokens(ops[i]);
        for (int64_t n = 0; n < step.sequences; ++n) tiles[n + 1] = tiles[n] + (step.starts[n + 1] - step.starts[n] + size - 1) / size;
        break;
    }
    return tiles;
}

void run_all(const Op* ops, int64_t num_ops, const Step& step, Team& team, const int64_t* tiles, double* seconds, bool first) {
    auto begin = Clock::now();
    for (int64_t i = 0; i < num_ops; ++i) {
        if (ops[i].format == BF16) {
            run_op<Bf16>(ops[i], step, team, tiles, first);
        } else {
            run_op<float>(ops[i], step, team, tiles, first);
        }
        if (ops[i].kind >= SUM && *(const int64_t*)ops[i].p[4]) return;
        if (!seconds || !first) continue;
        const auto now = Clock::now();
        seconds[i] += std::chrono::duration<double>(now - begin).count();
        begin = now;
    }
}

}  // namespace

extern "C" {

// Runs the ops on a step with this many threads; adds the seconds of each to `seconds` where that is given.
void rayplane_run(const Op* ops, int64_t num_ops, const Step* step, int64_t threads, double* seconds) {
    const std::vector<int64_t> tiles = tiles_of(ops, num_ops, *step);
    Team team;
#if defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel num_threads(int(threads))
        {
#pragma omp single
            team.of(omp_get_num_threads());  // may be fewer than asked for
            run_all(ops, num_ops, *step, team, tiles.data(), seconds, omp_get_thread_num() == 0);
        }
        return;
    }
#endif
    run_all(ops, num_ops, *step, team, tiles.data(), seconds, true);
}

// What this build was made for: 1 products of bf16, 2 tiles, 4 threads.
int64_t rayplane_abilities() {
    int64_t out = HAS_BF16_DOT;
#if HAS_TILES
    out |= tiles_ready() ? 2 : 0;
#endif
#if defined(_OPENMP)
    out |= 4;
#endif
    return out;
}

// Packs W [N, K] bf16 of row stride `stride`: row i of the result is row order[i] of W, or zeros where that is -1.
void rayplane_pack(const uint16_t* w, int64_t stride, int64_t k, const int64_t* order, int64_t rows, int64_t padded_k, uint16_t* out) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < padded_k; ++j) {
            const uint16_t x = order[i] >= 0 && j < k ? w[order[i] * stride + j] : 0;
            out[packed_at(i, j, padded_k)] = x;
        }
    }
}

void rayplane_enter(void* header, int64_t rank, int64_t pid) { ((SharedHeader*)header)->ranks[rank].pid.store(pid); }

int64_t rayplane_meet(void* header, int64_t rank, int64_t ranks, double timeout_s) {
    return meet_ranks((SharedHeader*)header, rank, ranks, timeout_s);
}

}
