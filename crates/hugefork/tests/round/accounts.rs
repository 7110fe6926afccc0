//! Checks that a pool is back in its original state after its last region and its last snapshot are gone.

use hugefork::Pool;
use procfs::process::Process;

use crate::common::forked::is_of_pool;
use crate::common::wait::until;

pub(crate) struct Accounts;

impl Accounts {
    /// Checks the accounts of a pool without regions, and drops it. The kernel has refused to unmap `lost` ranges,
    /// whose blocks are out of use, and to give back the rest of `torn` blocks of which a part was dropped. Before the
    /// pool was built, `mappings` mappings showed pool memory.
    pub(crate) fn check(pool: Pool, lost: u64, torn: u64, mappings: usize) {
        let stats = pool.stats();
        println!("  {} of {} blocks free, {} leaked", stats.blocks_free, stats.blocks, stats.blocks_leaked);
        let (known, blocks) = (stats.blocks_free + stats.blocks_leaked, stats.blocks);
        // A block that two holders have leaked is counted twice.
        assert!(known == blocks || lost > 1 && known > blocks, "references are left: {known} of {blocks} are known");
        assert!(lost + torn >= stats.blocks_leaked as u64 || lost > 0, "{} blocks leaked", stats.blocks_leaked);
        assert_eq!((stats.regions, stats.blocks_reserved), (0, 0));
        assert!(lost > 0 || stats.mappings == 0, "{} mappings are left on the account", stats.mappings);
        if lost > 0 {
            return;
        }
        drop(pool);
        until("the mappings of a pool go", || Accounts::pool_mappings() <= mappings);
    }

    /// The number of mappings of pool memory.
    pub(crate) fn pool_mappings() -> usize {
        let maps = Process::myself().unwrap().maps().unwrap();
        maps.into_iter().filter(is_of_pool).count()
    }
}
