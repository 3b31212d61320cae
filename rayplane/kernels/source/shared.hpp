// A sum over the ranks of one host through memory that they share: each writes its part into its own place, tells so, and adds up all.
//
//     header   arrivals of each rank | failed          parts [2, ranks, bytes]: those of one sum and of the next
//
// A rank writes the parts of the sum after next only when all have come to the next one, so all have read this one.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "numbers.hpp"
#include "records.hpp"
#include "team.hpp"

constexpr int MAX_RANKS = 64;

struct alignas(64) Arrival {
    std::atomic<int64_t> count;
    std::atomic<int64_t> pid;
};

struct SharedHeader {
    Arrival ranks[MAX_RANKS];
    std::atomic<int64_t> failed;  // 1 + the rank that someone gave up on
};

// Whether a process is gone, or dead and only not yet collected by its parent.
inline bool is_dead(int64_t pid) {
    if (kill(pid_t(pid), 0) != 0 && errno == ESRCH) return true;
    char path[64], text[512];
    std::snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE* file = std::fopen(path, "r");
    if (!file) return false;
    const size_t size = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    text[size] = 0;
    const char* name_end = std::strrchr(text, ')');
    return name_end && (name_end[1] == ' ') && (name_end[2] == 'Z' || name_end[2] == 'X');
}

// Tells that this rank has come for the next time, and waits for the others. 0, or 1 + the rank that is dead, or 1 + ranks + the one late.
inline int64_t meet_ranks(SharedHeader* header, int64_t rank, int64_t ranks, double timeout_s) {
    using Clock = std::chrono::steady_clock;
    const int64_t count = header->ranks[rank].count.fetch_add(1, std::memory_order_acq_rel) + 1;
    for (int64_t peer = 0; peer < ranks; ++peer) {
        Clock::time_point begin;
        for (int64_t turn = 0; header->ranks[peer].count.load(std::memory_order_acquire) < count; ++turn) {
            pause_a_little(turn);
            if (turn == 1024) begin = Clock::now();
            if (turn < 1024 || turn % 1024) continue;
            if (int64_t failed = header->failed.load()) return failed;
            const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
            if (waited_s > 2e-4) {
                const timespec nap{0, 50000};
                nanosleep(&nap, nullptr);
            }
            const bool dead = waited_s > 2e-3 && turn % 16384 == 0 && is_dead(header->ranks[peer].pid.load());
            if (!dead && waited_s < timeout_s) continue;
            header->failed.store(dead ? 1 + peer : 1 + ranks + peer);
            return header->failed.load();
        }
    }
    return 0;
}

// The ranks of an op meet; false where one did not come.
// p: header, ., ., ., failure (int64)   n: ., rank, ranks   f: timeout in s
inline bool meet(const Op& op, Team& team, bool first_thread) {
    int64_t* failure = (int64_t*)op.p[4];
    if (first_thread) *failure = meet_ranks((SharedHeader*)op.p[0], op.n[1], op.n[2], op.f[0]);
    team.meet();
    return !*failure;
}

// out += the sum over ranks of parts (+ bias), or out = it.
// p: header, parts [ranks] of [T, H] fp32, out, bias or null, failure (int64)   n: H, rank, ranks, elements between ranks' parts,
// stride of out, add, meet only   f: timeout in s
template <class T>
void sum(const Op& op, const Step& step, Team& team, bool first_thread) {
    if (!meet(op, team, first_thread) || op.n[6]) return;
    const T* bias = (const T*)op.p[3];
    team.share(step.tokens, [&](int64_t t) {
        const int64_t size = op.n[0];
        const float* parts = (const float*)op.p[1] + t * size;
        T* out = (T*)op.p[2] + t * op.n[4];
        for (int64_t i = 0; i < size; ++i) {
            float x = parts[i];
            for (int64_t r = 1; r < op.n[2]; ++r) x += parts[r * op.n[3] + i];
            if (bias) x += widen(bias[i]);
            narrow(op.n[5] ? x + widen(out[i]) : x, out[i]);
        }
    });
}
