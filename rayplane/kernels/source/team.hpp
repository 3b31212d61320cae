// The threads of one run: they go through the same ops together, and share the items of each as they come to them.
// Who waits for another looks for SPINS turns, some tenth of a millisecond, and then sleeps: the one that is waited for may need its core.
#pragma once

#include <atomic>
#include <cstdint>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int64_t SPINS = 2048;

inline void pause_a_little(int64_t turn) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (turn % 1024 == 1023) sched_yield();  // cores may be shared with others
}

class Team {
public:
    // Before any thread uses it: how many there are.
    void of(int threads) { threads_ = threads; }

    // Calls body(item) for each of `items`, on whichever thread comes first; all have ended when it returns.
    template <class Body>
    void share(int64_t items, const Body& body) {
        if (threads_ == 1) {
            for (int64_t i = 0; i < items; ++i) body(i);
            return;
        }
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items;) body(i);
        meet();
    }

    void meet() {
        if (threads_ == 1) return;
        const int phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1);
            if (sleepers_.load()) syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, threads_, nullptr, nullptr, 0);
            return;
        }
        for (int64_t turn = 0; phase_.load(std::memory_order_acquire) == phase; ++turn) {
            if (turn < SPINS) {
                pause_a_little(turn);
                continue;
            }
            sleepers_.fetch_add(1);
            syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
            sleepers_.fetch_sub(1);
        }
    }

private:
    int threads_ = 1;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> phase_{0};
    std::atomic<int> sleepers_{0};
};
