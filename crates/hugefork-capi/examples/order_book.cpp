/*
 * An order book of std::pmr containers that goes back to any of its last states. The whole book
 * lies in a heap, so a state is a snapshot, and the containers need not know of it. For
 * comparison, states by the copy constructor, and by fork(2).
 *
 *     c++ -std=c++17 -O2 order_book.cpp $(pkg-config --cflags --libs hugefork)
 *     ./a.out [ORDERS [STATES]]      by default 10000 orders, 1000 states
 */
#include <hugefork.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

struct order {
    bool is_bid;
    std::int64_t price;
    std::uint32_t quantity;
};

/* Numbers of orders, in the order of their arrival. */
using level = std::pmr::set<std::uint64_t>;

struct book {
    explicit book(std::pmr::memory_resource *memory) : bids(memory), asks(memory), orders(memory) {}

    std::pmr::map<std::int64_t, level> &side(bool is_bid) { return is_bid ? bids : asks; }

    /* Trades with the best orders of the other side. The rest waits in the book. */
    void submit(order made)
    {
        auto &others = side(!made.is_bid);
        while (made.quantity > 0 && !others.empty()) {
            const auto best = made.is_bid ? others.begin() : std::prev(others.end());
            if (made.is_bid ? best->first > made.price : best->first < made.price) break;
            const std::uint64_t number = *best->second.begin();
            order &other = orders.at(number);
            const std::uint32_t traded = std::min(made.quantity, other.quantity);
            made.quantity -= traded;
            other.quantity -= traded;
            if (other.quantity == 0) cancel(number);
        }
        if (made.quantity == 0) return;
        side(made.is_bid)[made.price].insert(next);
        orders.emplace(next++, made);
    }

    void cancel(std::uint64_t number)
    {
        const auto found = orders.find(number);
        if (found == orders.end()) return;
        auto &levels = side(found->second.is_bid);
        const auto at = levels.find(found->second.price);
        at->second.erase(number);
        if (at->second.empty()) levels.erase(at);
        orders.erase(found);
    }

    /* A number that depends on all contents. */
    std::uint64_t digest() const
    {
        std::uint64_t sum = next;
        for (const auto *levels : {&bids, &asks})
            for (const auto &[price, numbers] : *levels)
                for (const std::uint64_t number : numbers) {
                    const order &one = orders.at(number);
                    for (const std::uint64_t part :
                         {std::uint64_t(price), number, std::uint64_t(one.is_bid), std::uint64_t(one.quantity)})
                        sum = (sum ^ part) * 0x9e3779b97f4a7c15;
                }
        return sum;
    }

    std::pmr::map<std::int64_t, level> bids, asks;
    std::pmr::unordered_map<std::uint64_t, order> orders;
    std::uint64_t next = 0;
};

/* A new order around a price, or a cancelled one. The book keeps its size. */
static void step(book &live, std::size_t size, std::mt19937_64 &random)
{
    while (live.orders.size() > size) live.cancel(live.next - 1 - random() % (2 * size));
    const bool is_bid = random() % 2 == 0;
    const std::int64_t away = 1 + std::int64_t(random() % 1000) - std::int64_t(random() % 10 == 0) * 500;
    live.submit({is_bid, is_bid ? 100000 - away : 100000 + away, 1 + std::uint32_t(random() % 100)});
}

static void fill(book &live, std::size_t size, std::mt19937_64 &random)
{
    while (live.orders.size() < size) step(live, size, random);
}

/* The average time of a call in microseconds. */
static double timed(std::size_t times, const std::function<void()> &call)
{
    const auto begun = std::chrono::steady_clock::now();
    for (std::size_t nth = 0; nth < times; nth++) call();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count() / double(times);
}

/* The memory of a process in KiB, of which shared pages count in part, and its page tables. */
static double memory_of(pid_t process)
{
    double sum = 0;
    for (const char *file : {"/smaps_rollup", "/status"}) {
        std::ifstream lines("/proc/" + std::to_string(process) + file);
        for (std::string line; std::getline(lines, line);)
            if (line.rfind("Pss:", 0) == 0 || line.rfind("VmPTE:", 0) == 0) sum += std::atof(&line[line.find(':') + 1]);
    }
    return sum;
}

/* Times are in microseconds, `memory` is that of one state in KiB. */
static void print(const char *by, double state, double memory, std::size_t states, double one, double any)
{
    std::printf("%-16s %12.1f %12.1f %12.1f %12.1f\n", by, state, memory * double(states) / 1024, one, any);
}

static void by_snapshots(std::size_t size, std::size_t states)
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    options.name = "order book";
    const std::size_t len = (size / 4096 + 4) << 21; /* more than 512 bytes for each order */
    options.capacity = 2 * len + ((states / 8 + 4) << 21); /* 256 KiB for each state */
    hf::pool pool(options);
    hf::heap heap(pool, len);
    hf::memory_resource memory(heap);
    book &live = *new (memory.allocate(sizeof(book), alignof(book))) book(&memory);
    std::mt19937_64 random(1);
    fill(live, size, random);

    struct state {
        hf::snapshot saved;
        std::uint64_t digest;
    };
    std::vector<state> past;
    double time = 0, one = 0, any = 0;
    const double before = memory_of(getpid());
    for (std::size_t nth = 0; nth < states; nth++) {
        step(live, size, random);
        time += timed(1, [&] { past.push_back({heap.snapshot(), 0}); });
        past.back().digest = live.digest();
    }
    const double taken = (memory_of(getpid()) - before) / double(states);
    for (std::size_t nth = 0; nth < states; nth++) {
        const state &goal = past[random() % states];
        for (double *sum : {&any, &one}) {
            *sum += timed(1, [&] { heap.reset_to(goal.saved); });
            if (live.digest() != goal.digest) {
                std::fprintf(stderr, "the book is another one\n");
                std::exit(1);
            }
            step(live, size, random);
        }
    }
    print("hf::snapshot", time / double(states), taken, states, one / double(states), any / double(states));
    live.~book();
}

static void by_copies(std::size_t size, std::size_t states)
{
    const std::size_t some = std::min<std::size_t>(states, 20);
    book live(std::pmr::get_default_resource());
    std::mt19937_64 random(1);
    fill(live, size, random);
    std::vector<std::unique_ptr<book>> past;
    const double before = memory_of(getpid());
    const double time = timed(some, [&] {
        step(live, size, random);
        past.push_back(std::make_unique<book>(live));
    });
    const double taken = (memory_of(getpid()) - before) / double(some);
    /* The state remains, so going back is another copy. */
    const double back = timed(some, [&] { live = *past[random() % some]; });
    print("copy constructor", time, taken, states, back, back);
}

/* A state is a child that waits. To go back, the program would have to go on in the child. */
static void by_fork(std::size_t size, std::size_t states)
{
    const std::size_t some = std::min<std::size_t>(states, 50);
    book live(std::pmr::get_default_resource());
    std::mt19937_64 random(1);
    fill(live, size, random);
    std::vector<pid_t> past;
    const double before = memory_of(getpid());
    const double time = timed(some, [&] {
        step(live, size, random);
        const pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        past.push_back(child);
    });
    double after = memory_of(getpid());
    for (const pid_t child : past) after += memory_of(child);
    for (const pid_t child : past) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    std::printf("%-16s %12.1f %12.1f %12s %12s\n", "fork(2)", time, (after - before) / double(some * 1024) * double(states),
                "-", "-");
}

int main(int count, char **arguments)
{
    const std::size_t size = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 10000;
    const std::size_t states = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 1000;
    std::printf("a book of %zu orders, which changes between its states\n", size);
    std::printf("%-16s %12s %12s %12s %12s\n", "", "a state, us", "all, MiB", "a step back", "to any, us");
    by_fork(size, states);
    by_copies(size, states);
    by_snapshots(size, states);
    std::printf("each of %zu states had its contents when the book was back\n", states);
    return 0;
}
