// A few threads that share loops of independent tasks.
//
// A worker that the system has put aside never holds up a loop that the others can finish: it
// takes part only in loops that are still open when it comes. Workers spin briefly between
// loops, since a decode step has hundreds of them, and then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace hr {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

class Pool {
  public:
    explicit Pool(int threads) : threads_(threads < 1 ? 1 : threads) {
        for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
    }

    ~Pool() {
        stop_.store(true);
        wake();
        for (auto& worker : workers_) worker.join();
    }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return threads_; }

    // Calls body(task, thread) for every task in 0 .. tasks, each once, in any order; returns
    // when all are done. One thread at a time may call it.
    template <class Body>
    void run(int tasks, const Body& body) {
        if (threads_ == 1 || tasks <= 1) {
            for (int task = 0; task < tasks; ++task) body(task, 0);
            return;
        }
        call_ = [](const void* context, int task, int thread) {
            (*static_cast<const Body*>(context))(task, thread);
        };
        context_ = &body;
        tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        const uint64_t opened = ((state_.load(std::memory_order_relaxed) >> kShift) + 1) << kShift;
        state_.store(opened | kOpen);
        if (sleepers_.load() > 0) wake();
        take_tasks(0);
        state_.fetch_and(~kOpen);
        for (int spins = 0; state_.load(std::memory_order_acquire) & kActive; ++spins) {
            if (spins < kSpins) pause();
            else std::this_thread::yield();
        }
    }

  private:
    // state_ = number of the loop, one bit that says it is open, count of workers inside it.
    static constexpr int kShift = 16;
    static constexpr uint64_t kOpen = 1u << 15;
    static constexpr uint64_t kActive = kOpen - 1;
    static constexpr int kSpins = 2000;

    void take_tasks(int thread) {
        for (;;) {
            const int task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks_) return;
            call_(context_, task, thread);
        }
    }

    bool try_join(uint64_t& last) {
        uint64_t state = state_.load(std::memory_order_acquire);
        while ((state & kOpen) && (state >> kShift) != last) {
            if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
                last = state >> kShift;
                return true;
            }
        }
        return false;
    }

    void work(int thread) {
        uint64_t last = 0;
        int spins = 0;
        while (!stop_.load(std::memory_order_relaxed)) {
            if (try_join(last)) {
                take_tasks(thread);
                state_.fetch_sub(1, std::memory_order_release);
                spins = 0;
            } else if (++spins < kSpins) {
                pause();
            } else {
                const int before = woken_.load();
                sleepers_.fetch_add(1);
                // Looked at again after announcing the sleep, so that no loop is slept through.
                const uint64_t state = state_.load();
                const bool idle = !(state & kOpen) || (state >> kShift) == last;
                if (idle && !stop_.load()) woken_.wait(before);
                sleepers_.fetch_sub(1);
                spins = 0;
            }
        }
    }

    void wake() {
        woken_.fetch_add(1);
        woken_.notify_all();
    }

    const int threads_;
    std::vector<std::thread> workers_;
    void (*call_)(const void*, int, int) = nullptr;
    const void* context_ = nullptr;
    int tasks_ = 0;
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> woken_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace hr
