// hugefork.hpp: containers in a heap go back with it, and a child has them as they were.
#include <hugefork.hpp>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"

using Model = std::map<int, std::string>;

// A value with containers in each other, all in one heap.
struct Words {
    explicit Words(std::pmr::memory_resource *memory) : sorted(memory), hashed(memory), longest(memory) {}

    void set(int key, const std::string &text)
    {
        sorted[key] = text;
        hashed[key].assign(text.begin(), text.end());
    }
    void erase(int key)
    {
        sorted.erase(key);
        hashed.erase(key);
    }
    bool is(const Model &model) const
    {
        if (sorted.size() != model.size() || hashed.size() != model.size()) return false;
        for (const auto &[key, text] : model) {
            const auto in_tree = sorted.find(key);
            const auto in_table = hashed.find(key);
            if (in_tree == sorted.end() || in_table == hashed.end()) return false;
            if (std::string_view(in_tree->second) != text) return false;
            if (std::string(in_table->second.begin(), in_table->second.end()) != text) return false;
        }
        return true;
    }

    std::pmr::map<int, std::pmr::string> sorted;
    std::pmr::unordered_map<int, std::pmr::vector<char>> hashed;
    std::pmr::vector<char> longest;
};

template <class T>
static T &make(std::pmr::memory_resource &memory)
{
    return *new (memory.allocate(sizeof(T), alignof(T))) T(&memory);
}

// The code of the error that `call` throws; 0 without one.
template <class Call>
static int thrown(Call call)
{
    try {
        call();
    } catch (const hf::error &error) {
        CHECK(strlen(error.what()) > 20 && std::string(error.what()) == hf_last_error());
        return error.code();
    }
    return 0;
}

static hf::pool inheriting(std::size_t capacity) { return hf::pool(inherited_pool(capacity)); }

// Compares the containers with a model of the standard library, through random changes and resets.
static void goes_back()
{
    hf::pool pool = inheriting(64 * MIB);
    hf::heap heap(pool, 16 * MIB);
    hf::memory_resource memory(heap);
    Words &words = make<Words>(memory);
    Model model;
    std::vector<std::pair<hf::snapshot, Model>> past;
    std::mt19937 random(1);
    for (int round = 0; round < 300; round++) {
        for (int nth = 0; nth < 200; nth++) {
            const int key = static_cast<int>(random() % 1000);
            if (random() % 3 == 0) {
                words.erase(key);
                model.erase(key);
            } else {
                const std::string text(random() % 100, static_cast<char>('a' + random() % 26));
                words.set(key, text);
                model[key] = text;
            }
        }
        CHECK(words.is(model));
        if (round % 3 == 0) past.emplace_back(heap.snapshot(), model);
        if (round % 10 == 9) {
            const auto &[saved, then] = past[random() % past.size()];
            heap.reset_to(saved);
            model = then;
            CHECK(words.is(model));
        }
    }
    for (const auto &[saved, then] : past) {
        const int child = hf::fork_with({{heap, saved}});
        if (child == 0) {
            bool is_well = words.is(then);
            words.set(7, "the child's");
            words.sorted.clear();
            _exit(!is_well);
        }
        wait_for(child);
    }
    CHECK(words.is(model));
    words.~Words();
}

static void errors()
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    CHECK(thrown([&] { hf::pool pool(options); }) == HF_E_ZERO_SIZE);
    options.capacity = 32 * MIB;
    hf::pool pool(options);
    CHECK(thrown([&] { hf::heap heap(pool, 64 * MIB); }) == HF_E_LARGER_THAN_POOL);
    hf::heap heap(pool, 4 * MIB);
    hf::region region(pool, BLOCK);
    hf::snapshot foreign = region.snapshot();
    CHECK(thrown([&] { heap.reset_to(foreign); }) == HF_E_ANOTHER_LENGTH);
    CHECK(thrown([&] { hf::fork_with({{region, foreign}}); }) == HF_E_NOT_EXPORTABLE);
    {
        hf::operation inside(heap);
        CHECK(thrown([&] { heap.snapshot(); }) == HF_E_INSIDE_OPERATION);
    }
    // A moved object is empty, and the other one goes on.
    hf::snapshot moved = std::move(foreign);
    CHECK(foreign.get() == nullptr && thrown([&] { region.reset_to(foreign); }) == HF_E_BAD_HANDLE);
    region.reset_to(moved);

    // A full heap throws, and its contents go on. Two resources of one heap are the same to containers that move.
    hf::memory_resource memory(heap);
    CHECK(memory == hf::memory_resource(heap));
    Words &words = make<Words>(memory);
    words.set(1, "one");
    bool is_full = false;
    try {
        words.longest.resize(5 * MIB);
    } catch (const std::bad_alloc &) {
        is_full = true;
    }
    CHECK(is_full && words.is({{1, "one"}}));
    words.longest.resize(MIB);
    words.~Words();
}

static void regions()
{
    hf::pool pool = inheriting(16 * MIB);
    hf::region region(pool, BLOCK);
    CHECK(region.size() == BLOCK);
    const auto bytes = static_cast<char *>(region.address());
    bytes[0] = 1;
    hf::snapshot saved = region.snapshot();
    hf::region fork = region.fork();
    bytes[0] = 2;
    CHECK(static_cast<const char *>(saved.map())[0] == 1 && static_cast<char *>(fork.address())[0] == 1);
}

// Threads write to two maps in each operation, so every child has both writes or none.
static void threads()
{
    hf::pool pool = inheriting(128 * MIB);
    hf::heap heap(pool, 32 * MIB);
    hf::memory_resource memory(heap);
    constexpr int THREADS = 3;
    std::vector<Words *> words;
    for (int nth = 0; nth < THREADS; nth++) words.push_back(&make<Words>(memory));
    std::atomic<bool> is_over = false;
    std::vector<std::thread> writers;
    for (int nth = 0; nth < THREADS; nth++)
        writers.emplace_back([&, nth] {
            for (int round = 0; !is_over; round++) {
                hf::operation inside(heap);
                if (round % 3 == 2)
                    words[nth]->erase(round % 500);
                else
                    words[nth]->set(round % 700, std::to_string(round));
            }
        });
    for (int nth = 0; nth < 20; nth++) {
        hf::snapshot saved = heap.snapshot();
        const int child = hf::fork_with({{heap, saved}});
        if (child == 0) {
            for (const Words *one : words) {
                Model model;
                for (const auto &[key, text] : one->sorted) model[key] = text;
                CHECK(one->is(model));
            }
            _exit(0);
        }
        wait_for(child);
    }
    is_over = true;
    for (std::thread &writer : writers) writer.join();
    for (Words *one : words) one->~Words();
}

int main()
{
    goes_back();
    errors();
    regions();
    threads();
    return 0;
}
