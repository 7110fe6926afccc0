// The header as C++ sees it.
#include <hugefork.h>

#include <cstring>
#include <memory>

struct Close {
    void operator()(hf_pool *pool) const { hf_pool_close(pool); }
    void operator()(hf_region *region) const { hf_region_close(region); }
    void operator()(hf_snapshot *snapshot) const { hf_snapshot_close(snapshot); }
};

int main()
{
    hf_pool_options options = HF_POOL_OPTIONS_INIT;
    options.name = "from C++";
    options.capacity = std::size_t{8} << 20;
    options.backing = HF_BACKING_SHMEM_BASE;
    hf_pool *made = nullptr;
    if (hf_pool_create(&options, &made) != 0) return 1;
    std::unique_ptr<hf_pool, Close> pool(made);
    hf_region_options region_options = HF_REGION_OPTIONS_INIT;
    hf_region *live = nullptr;
    if (hf_region_create(pool.get(), std::size_t{4} << 20, &region_options, &live) != 0) return 2;
    std::unique_ptr<hf_region, Close> region(live);
    std::memcpy(hf_region_address(region.get()), "hello", 5);
    hf_snapshot *taken = nullptr;
    if (hf_region_snapshot(region.get(), nullptr, &taken) != 0) return 3;
    std::unique_ptr<hf_snapshot, Close> saved(taken);
    std::memcpy(hf_region_address(region.get()), "world", 5);
    char text[5];
    if (hf_snapshot_read_at(saved.get(), 0, text, 5) != 0) return 4;
    return std::memcmp(text, "hello", 5) == 0 ? 0 : 5;
}
