//! How long a WebAssembly instance takes from its making to its end, if it writes some pages of its memory: wasmtime's
//! own memories beside regions of hugefork's, which are reset in place of being mapped anew.
//!
//! Each instance has 64 MiB of memory that begins with an image, reads and writes some pages anywhere, and is gone. What
//! it has read tells whether its memory was as it should be. Ways take turns; the table has medians.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugefork::{CopyGrain, Pool, Region, RegionOptions, Snapshot};
use wasmtime::{
    Config, Enabled, Engine, Instance, InstanceAllocationStrategy, LinearMemory, MemoryCreator, MemoryType, Module,
    PoolingAllocationConfig, Store, TypedFunc,
};

/// What an instance has, and what the images in it are as long as.
const MEMORY: usize = 64 << 20;
const IMAGES: [usize; 2] = [64 << 10, 4 << 20];

/// So many pages of 4 KiB each instance writes.
const PAGES: [u32; 4] = [0, 10, 100, 1000];

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(150);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Reads and writes so many words, one in each of as many pages that follow no order. Gives the sum of what it has read.
fn module(image: usize) -> String {
    format!(
        r#"(module
  (memory (export "memory") {pages} {pages})
  (data (i32.const 0) "{image}")
  (func (export "work") (param $pages i32) (result i32)
    (local $at i32) (local $sum i32)
    (block $done (loop $next
      (br_if $done (i32.eqz (local.get $pages)))
      (local.set $at (i32.and (i32.mul (local.get $pages) (i32.const 0x9e3779b1)) (i32.const {mask})))
      (local.set $sum (i32.add (local.get $sum) (i32.load (local.get $at))))
      (i32.store (local.get $at) (i32.const -1))
      (local.set $pages (i32.sub (local.get $pages) (i32.const 1)))
      (br $next)))
    (local.get $sum)))"#,
        pages = MEMORY >> 16,
        image = "hugefork".repeat(image / 8),
        mask = MEMORY - 4096,
    )
}

/// A region, and what it was at first, until somebody has no more use for that.
struct Zeroed {
    region: Region,
    zeros: Mutex<Option<Snapshot>>,
}

/// Memories that are regions. Those that nobody uses any more are reset, and used again.
struct Regions {
    pool: Pool,
    free: Arc<Mutex<Vec<Arc<Zeroed>>>>,
    /// The one that was given last.
    last: Mutex<Option<Arc<Zeroed>>>,
}

impl Regions {
    fn new(pool: &Pool) -> Arc<Regions> {
        Arc::new(Regions { pool: pool.clone(), free: Arc::default(), last: Mutex::default() })
    }

    fn give(&self) -> Outcome<Arc<Zeroed>> {
        let free = self.free.lock().expect("nobody panics with it").pop();
        let zeroed = match free {
            Some(zeroed) => zeroed,
            None => {
                let mut region = self.pool.region_with(MEMORY, RegionOptions::new().copy_grain(CopyGrain::Page))?;
                // All of it has memory then, as with `linear_memory_keep_resident`, and is one mapping after the snapshot.
                region.as_mut_slice().fill(0);
                let zeros = Mutex::new(Some(region.snapshot()?));
                Arc::new(Zeroed { region, zeros })
            }
        };
        *self.last.lock().expect("nobody panics with it") = Some(zeroed.clone());
        Ok(zeroed)
    }
}

struct RegionMemory {
    zeroed: Arc<Zeroed>,
    free: Arc<Mutex<Vec<Arc<Zeroed>>>>,
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // What nobody can make zeros again is given to nobody.
        let Some(zeros) = &*self.zeroed.zeros.lock().expect("nobody panics with it") else { return };
        self.zeroed.region.reset_to(zeros).expect("the region can be reset");
        self.free.lock().expect("nobody panics with it").push(self.zeroed.clone());
    }
}

// SAFETY: the memory is as long as it says, stays where it is, and is nobody else's until it is dropped.
unsafe impl LinearMemory for RegionMemory {
    fn byte_size(&self) -> usize {
        MEMORY
    }

    fn byte_capacity(&self) -> usize {
        MEMORY
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        if size == MEMORY { Ok(()) } else { Err(wasmtime::Error::msg("these memories do not grow")) }
    }

    fn as_ptr(&self) -> *mut u8 {
        self.zeroed.region.as_mut_ptr()
    }
}

// SAFETY: each memory is another region, and reads as zeros. The engine checks bounds itself, so that it needs no guard.
unsafe impl MemoryCreator for Regions {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        _: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        if minimum != MEMORY || guard != 0 {
            return Err(format!("only memories of {MEMORY} bytes without a guard"));
        }
        let zeroed = self.give().map_err(|error| error.to_string())?;
        Ok(Box::new(RegionMemory { zeroed, free: self.free.clone() }))
    }
}

/// One way to have instances.
enum Way {
    /// Each comes, works, and goes.
    New { engine: Engine, module: Module },
    /// One stays, and its memory is taken back to what it was before it worked.
    Same { store: Store<()>, work: TypedFunc<u32, i32>, memory: Arc<Zeroed>, begin: Snapshot },
}

impl Way {
    fn new(config: &Config, text: &str) -> Outcome<Way> {
        let engine = Engine::new(config)?;
        let module = Module::new(&engine, text)?;
        Ok(Way::New { engine, module })
    }

    fn same(pool: &Pool, text: &str) -> Outcome<Way> {
        let regions = Regions::new(pool);
        let engine = Engine::new(&over_regions(regions.clone()))?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
        let work = instance.get_typed_func(&mut store, "work")?;
        let memory = regions.last.lock().expect("nobody panics with it").take().ok_or("it has no memory")?;
        // Nobody goes back to them, and beside them a reset would write page by page while all is write-protected.
        memory.zeros.lock().expect("nobody panics with it").take();
        let begin = memory.region.snapshot()?;
        Ok(Way::Same { store, work, memory, begin })
    }

    /// What an instance has read that writes so many pages.
    fn once(&mut self, pages: u32) -> Outcome<i32> {
        match self {
            Way::New { engine, module } => {
                let mut store = Store::new(engine, ());
                let instance = Instance::new(&mut store, module, &[])?;
                let work: TypedFunc<u32, i32> = instance.get_typed_func(&mut store, "work")?;
                Ok(work.call(&mut store, pages)?)
            }
            Way::Same { store, work, memory, begin } => {
                let read = work.call(store, pages)?;
                memory.region.reset_to(begin)?;
                Ok(read)
            }
        }
    }

    /// Microseconds for each.
    fn round(&mut self, pages: u32, expected: i32) -> Outcome<f64> {
        let (begin, mut count) = (Instant::now(), 0u32);
        while begin.elapsed() < ROUND {
            let read = self.once(pages)?;
            if read != expected {
                return Err(format!("an instance has read {read} in place of {expected}").into());
            }
            count += 1;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    }
}

fn config() -> Config {
    let mut config = Config::new();
    // Alike for all: bounds are checked by instructions, so that no page behind a memory has to be out of reach, and
    // no signal is wasmtime's.
    config.memory_reservation(MEMORY as u64).memory_guard_size(0).memory_reservation_for_growth(0);
    config.signals_based_traps(false).memory_may_move(false);
    config
}

fn over_regions(regions: Arc<Regions>) -> Config {
    let mut config = config();
    // With an image of its own to map, wasmtime 48 panics at a memory that is not its own.
    config.with_host_memory(regions).memory_init_cow(false);
    config
}

fn pooling(resident: usize, scan: Enabled) -> Config {
    let mut pooling = PoolingAllocationConfig::new();
    pooling.total_memories(4).total_core_instances(4).max_memory_size(MEMORY);
    pooling.linear_memory_keep_resident(resident).pagemap_scan(scan);
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
    config
}

fn ways(pool: &Pool, image: usize) -> Vec<(&'static str, Outcome<Way>)> {
    let text = module(image);
    vec![
        ("wasmtime, on demand", Way::new(&config(), &text)),
        ("wasmtime, pooling", Way::new(&pooling(0, Enabled::No), &text)),
        ("wasmtime, pooling with PAGEMAP_SCAN", Way::new(&pooling(MEMORY, Enabled::Yes), &text)),
        ("hugefork, MemoryCreator", Way::new(&over_regions(Regions::new(pool)), &text)),
        ("hugefork, the same instance reset", Way::same(pool, &text)),
    ]
}

/// What an instance reads that has the memory it should have.
fn expected(image: usize, pages: u32) -> i32 {
    let word = |at: usize| if at < image { i32::from_le_bytes(*b"huge") } else { 0 };
    let at = |page: u32| page.wrapping_mul(0x9e37_79b1) as usize & (MEMORY - 4096);
    (1..=pages).fold(0i32, |sum, page| sum.wrapping_add(word(at(page))))
}

fn main() -> Outcome<()> {
    let pool = Pool::builder().name("wasm").capacity(8 * MEMORY).build()?;
    println!("us an instance, median of {ROUNDS} rounds (least … most); {} MiB each", MEMORY >> 20);
    for image in IMAGES {
        let mut ways = ways(&pool, image);
        for pages in PAGES {
            println!("\nimage of {} KiB, {pages} pages written", image >> 10);
            let expected = expected(image, pages);
            let mut times: Vec<_> = ways.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for ((_, way), times) in ways.iter_mut().zip(&mut times) {
                    if let Ok(way) = way {
                        times.push(way.round(pages, expected)?);
                    }
                }
            }
            for ((name, way), mut times) in ways.iter().zip(times) {
                times.sort_by(f64::total_cmp);
                match way {
                    Ok(_) => {
                        println!("  {name:36} {:9.1} ({:.1} … {:.1})", times[ROUNDS / 2], times[0], times[ROUNDS - 1])
                    }
                    Err(error) => println!("  {name:36} not run: {error}"),
                }
            }
        }
    }
    Ok(())
}
