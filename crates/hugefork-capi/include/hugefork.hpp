/*
 * hugefork for C++17: classes that close their handles, exceptions in place of codes, and a
 * memory resource for std::pmr. They only call hugefork.h, which says everything about the calls.
 * For functions without a method here, get() returns the handle, and each class can take over a
 * handle that such a function has made.
 *
 *     hf_pool_options options = HF_POOL_OPTIONS_INIT;
 *     options.capacity = std::size_t{256} << 20;
 *     hf::pool pool(options);
 *     hf::heap heap(pool, std::size_t{64} << 20);
 *     hf::memory_resource memory(heap);
 *     using words = std::pmr::map<int, std::pmr::string>;
 *     auto &live = *new (memory.allocate(sizeof(words), alignof(words))) words(&memory);
 *     live[1] = "one";
 *     hf::snapshot saved = heap.snapshot();
 *     live.clear();
 *     heap.reset_to(saved);
 *
 * live[1] is "one" again. The map itself lies in the heap, not only its nodes: a map on the
 * stack would not go back. Iterators and references into the heap from before a reset must not
 * be used: see hf_heap_region. If threads change the map, each change begins with
 * hf::operation inside(heap); and then takes the lock. Otherwise a snapshot may have half of it.
 *
 * With options.children = HF_CHILDREN_INHERIT a child saves the map without a pause:
 *
 *     hf::snapshot now = heap.snapshot();
 *     int child = hf::fork_with({{heap, now}});
 *     if (child == 0) {
 *         save(live); // as it was at the snapshot, at the same address
 *         _exit(0);
 *     }
 *     waitpid(child, &status, 0); // or later, in another thread
 *
 * A mutex of the map belongs in the heap, beside it: if threads take it inside operations, it
 * is free in each snapshot and child. One outside of the heap may be held in the child for ever.
 *
 * Objects may be moved, and are empty afterwards; get() returns NULL then. They may be destroyed
 * in any order, as handles may be closed. Objects in a heap must be gone before the heap is, or
 * must not be used or destroyed afterwards.
 */
#ifndef HUGEFORK_HPP
#define HUGEFORK_HPP

#include <hugefork.h>

#include <initializer_list>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace hf {

/* The failure of a call. what() says what happened and what to do: hf_last_error(). */
class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(hf_last_error()), code_(code) {}
    /* HF_E_... */
    int code() const noexcept { return code_; }

private:
    int code_;
};

/* Throws an error if `result` is that of a failed call; returns it otherwise. */
inline int check(int result)
{
    if (result < 0) throw error(result);
    return result;
}

/* A handle, which the object closes. */
template <class T, void (*close)(T *)>
class handle {
public:
    /* Takes over an open handle. */
    explicit handle(T *open) noexcept : open_(open) {}
    T *get() const noexcept { return open_.get(); }

protected:
    struct closer {
        void operator()(T *open) const noexcept { close(open); }
    };
    std::unique_ptr<T, closer> open_;
};

/* The handle that a function stores behind its other arguments. */
template <class T, class Function, class... Arguments>
T *made(Function make, Arguments... arguments)
{
    T *out;
    check(make(arguments..., &out));
    return out;
}

class pool : public handle<hf_pool, hf_pool_close> {
public:
    using handle::handle;
    explicit pool(const hf_pool_options &options) : handle(made<hf_pool>(hf_pool_create, &options)) {}
};

class snapshot : public handle<hf_snapshot, hf_snapshot_close> {
public:
    using handle::handle;
    /* Its bytes, at other addresses than the region's: hf_snapshot_map. */
    const void *map() const { return made<const void>(hf_snapshot_map, get()); }
};

class region : public handle<hf_region, hf_region_close> {
public:
    using handle::handle;
    region(const pool &pool, std::size_t len, const hf_region_options *options = nullptr)
        : handle(made<hf_region>(hf_region_create, pool.get(), len, options))
    {
    }
    void *address() const noexcept { return hf_region_address(get()); }
    std::size_t size() const noexcept { return hf_region_len(get()); }
    hf::snapshot snapshot(const hf_region_options *options = nullptr) const
    {
        return hf::snapshot(made<hf_snapshot>(hf_region_snapshot, get(), options));
    }
    region fork(const hf_region_options *options = nullptr) const
    {
        return region(made<hf_region>(hf_region_fork, get(), options));
    }
    void reset_to(const hf::snapshot &saved) const { check(hf_region_reset_to(get(), saved.get(), nullptr)); }
};

/* A region with an allocator: hf_heap_create. */
class heap : public region {
public:
    heap(const pool &pool, std::size_t len) : heap(made<hf_heap>(hf_heap_create, pool.get(), len)) {}
    /* Takes over an open handle. */
    explicit heap(hf_heap *open) : heap(handle<hf_heap, hf_heap_close>(open)) {}
    hf_heap *allocator() const noexcept { return allocator_.get(); }
    hf_operations *operations() const noexcept { return operations_.get(); }

private:
    explicit heap(handle<hf_heap, hf_heap_close> open)
        : region(made<hf_region>(hf_heap_region, open.get())), allocator_(std::move(open)),
          operations_(made<hf_operations>(hf_heap_operations, allocator_.get()))
    {
    }
    handle<hf_heap, hf_heap_close> allocator_;
    handle<hf_operations, hf_operations_close> operations_;
};

/* While it lives, its thread is inside an operation, or one of a heap: hf_operations_enter. */
class operation {
public:
    explicit operation(hf_operations *operations) : operations_(operations) { check(hf_operations_enter(operations_)); }
    explicit operation(const heap &heap) : operation(heap.operations()) {}
    ~operation() { hf_operations_leave(operations_); }
    operation(const operation &) = delete;
    operation &operator=(const operation &) = delete;

private:
    hf_operations *operations_;
};

/*
 * Serves std::pmr containers from a heap. A full heap throws std::bad_alloc. The containers keep
 * the address of the resource, so it must outlive them, and be older than the snapshots to which
 * the heap is reset.
 */
class memory_resource : public std::pmr::memory_resource {
public:
    explicit memory_resource(const heap &heap) noexcept : heap_(heap.allocator()) {}

private:
    void *do_allocate(std::size_t size, std::size_t alignment) override
    {
        if (void *at = hf_heap_alloc(heap_, size, alignment)) return at;
        throw std::bad_alloc();
    }
    void do_deallocate(void *at, std::size_t size, std::size_t alignment) override
    {
        hf_heap_free(heap_, at, size, alignment);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        const auto *of_heap = dynamic_cast<const memory_resource *>(&other);
        return of_heap && of_heap->heap_ == heap_;
    }

    hf_heap *heap_;
};

/* A region or heap, and the snapshot that it is in a child. */
struct as_of {
    const region &live;
    const snapshot &saved;
};

/*
 * Forks a child in which each region is as the snapshot beside it: fork_with({{heap, saved}}).
 * Returns 0 in the child, and the child's number in this process: hf_fork_with. The child ends
 * by _exit, so that it runs no destructors of this process.
 */
inline int fork_with(std::initializer_list<as_of> pairs)
{
    std::vector<hf_region *> regions;
    std::vector<const hf_snapshot *> snapshots;
    for (const as_of &pair : pairs) {
        regions.push_back(pair.live.get());
        snapshots.push_back(pair.saved.get());
    }
    int child;
    check(hf_fork_with(regions.data(), snapshots.data(), pairs.size(), &child));
    return child;
}

} // namespace hf

#endif
