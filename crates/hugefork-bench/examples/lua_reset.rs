//! A Lua state that is as new for each request: the state lies in a heap, with its libraries and the data of the
//! application, and a reset takes it back after each request. Beside it, a new state for each request, which loads the
//! same libraries and the same data, and calls in one state that nobody takes back.
//! `cargo run --release -p hugefork-bench --example lua_reset [PRODUCTS]`
//!
//! ```text
//!     10 products,  0.0 MiB: request 6.0 us, 4.3 of them reset; new state 31.9 us; one for all 1.5 us
//!   1000 products,  0.3 MiB: request 68.9 us, 45.0 of them reset; new state 531.1 us; one for all 1.8 us
//!  10000 products,  3.4 MiB: request 151.3 us, 78.2 of them reset; new state 9119.1 us; one for all 4.4 us
//! 100000 products, 32.5 MiB: request 310.0 us, 153.0 of them reset; new state 307401.1 us; one for all 7.4 us
//! ```
//! The rest of a request is its work and page faults: its first write to a page copies that page.
//!
//! Nothing here tells Lua or `mlua` about the heap: both allocate by Rust's global allocator, which is the heap inside
//! of [`Heap::scope`]. A reset takes back all that they know, for these reasons:
//!
//! * An interpreter of Lua keeps its state in the memory of its `lua_State`. The C code has no variables of its own.
//! * `mlua` keeps its own part in memory that it allocates in `Lua::new_with`. Its statics are constants.
//! * The libraries `io`, `os` and `package` are not there: they have files and modules outside of the heap.
//! * `Lua` and `Function` are handles: each has a pointer into the heap, and is older than the snapshot. Answers of
//!   requests are copied out of the heap and dropped before the reset.
//!
//! A random generator goes back, too: `math.random` has the same results in each request, unless the request gets a
//! seed.

use std::alloc::System;
use std::error::Error;
use std::time::{Duration, Instant};

use hugefork::{Heap, Pool, ScopedAllocator};
use mlua::{Function, Lua, LuaOptions, StdLib};

#[global_allocator]
static ALLOCATOR: ScopedAllocator<System> = ScopedAllocator::over(System);

const ROUNDS: usize = 5;

/// Data of an application, and a handler that changes them: nothing may remain of that in the next request.
const APPLICATION: &str = r#"
    local count = ...
    products, by_name, served = {}, {}, 0
    for id = 1, count do
        local product = { id = id, name = "product " .. id, price = id * 7 % 1000, tags = { "new", "in stock" } }
        products[id], by_name[product.name] = product, product
    end
    function handle(order)
        served = served + 1
        local lines = { "request " .. served }
        for id in order:gmatch("%d+") do
            local product = by_name["product " .. id]
            lines[#lines + 1] = product.name .. " for " .. product.price
            product.price = product.price + 1
            product.tags[#product.tags + 1] = "sold"
        end
        return table.concat(lines, ", ")
    end
"#;

const LIBRARIES: [StdLib; 5] = [StdLib::TABLE, StdLib::STRING, StdLib::MATH, StdLib::UTF8, StdLib::COROUTINE];

/// A new state with its libraries. It has the application as bytecode, or compiles it.
fn new_state(bytecode: Option<&[u8]>, products: usize) -> mlua::Result<(Lua, Function, Vec<u8>)> {
    let libraries = LIBRARIES.into_iter().fold(StdLib::NONE, |all, one| all | one);
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    let application = match bytecode {
        Some(bytecode) => lua.load(bytecode).into_function()?,
        None => lua.load(APPLICATION).into_function()?,
    };
    application.call::<()>(products)?;
    let handle = lua.globals().get("handle")?;
    Ok((lua, handle, application.dump(true)))
}

fn order(nth: usize, products: usize) -> String {
    let id = |which: usize| (nth * 7919 + which * 104_729) % products + 1;
    format!("{} {} {}", id(0), id(1), id(2))
}

fn expected(order: &str) -> String {
    let price = |id: &str| id.parse::<usize>().expect("a number") * 7 % 1000;
    let lines = order.split(' ').map(|id| format!(", product {id} for {}", price(id)));
    format!("request 1{}", lines.collect::<String>())
}

fn median(samples: &mut [Duration]) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_secs_f64() * 1e6
}

/// Answers `requests` requests in each way, `ROUNDS` times by turns. Prints medians of the medians of the rounds.
pub(crate) fn run(products: usize, requests: usize) -> Result<(), Box<dyn Error>> {
    let len = (products * 2048).next_multiple_of(2 << 20).max(16 << 20);
    let pool = Pool::builder().name("lua").capacity(2 * len).build()?;
    let heap: &'static Heap = Box::leak(Box::new(pool.heap(len)?));
    let (lua, handle, _) = heap.scope(|| new_state(None, products))?;
    // The collector has its work behind it at each beginning.
    heap.scope(|| lua.gc_collect())?;
    let used = lua.used_memory();
    let saved = heap.snapshot()?;

    let (shared, shared_handle, bytecode) = new_state(None, products)?;
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let (mut resets, mut all) = (Vec::new(), Vec::new());
        for nth in 0..requests {
            let order = order(nth, products);
            let begun = Instant::now();
            // The answer itself lies in the heap: it is copied outside.
            let answer = heap.scope(|| handle.call::<String>(order.as_str()));
            let copy = answer.as_ref().map_err(ToString::to_string).cloned();
            drop(answer);
            let done = Instant::now();
            // SAFETY: this thread alone uses the heap. The handles are older than the snapshot, and all that was made
            // since was dropped or lies in the heap.
            unsafe { heap.reset_to(&saved)? };
            resets.push(done.elapsed());
            all.push(begun.elapsed());
            assert_eq!(copy?, expected(&order));
        }
        times[0].push(Duration::from_secs_f64(median(&mut resets) / 1e6));
        times[1].push(Duration::from_secs_f64(median(&mut all) / 1e6));

        // As many as take a second at most.
        let mut all = Vec::new();
        for nth in 0..requests.min(2_000_000 / products).max(1) {
            let order = order(nth, products);
            let begun = Instant::now();
            let (fresh, handle, _) = new_state(Some(&bytecode), products)?;
            let answer = handle.call::<String>(order.as_str())?;
            drop((fresh, handle));
            all.push(begun.elapsed());
            assert_eq!(answer, expected(&order));
        }
        times[2].push(Duration::from_secs_f64(median(&mut all) / 1e6));

        let mut all = Vec::new();
        for nth in 0..requests {
            let order = order(nth, products);
            let begun = Instant::now();
            let answer = shared_handle.call::<String>(order.as_str())?;
            all.push(begun.elapsed());
            assert_eq!(answer.matches(',').count(), 3); // Its prices are those after all requests before.
        }
        times[3].push(Duration::from_secs_f64(median(&mut all) / 1e6));
    }
    drop((lua, handle, shared));
    let [reset, request, fresh, plain] = times.each_mut().map(|times| median(times));
    println!(
        "{products:6} products, {:4.1} MiB: request {request:.1} us, {reset:.1} of them reset; new state {fresh:.1} us; \
         one for all {plain:.1} us",
        used as f64 / f64::from(1 << 20),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let products = std::env::args().skip(1).map(|products| products.parse()).collect::<Result<Vec<_>, _>>()?;
    let products = if products.is_empty() { vec![10, 1000, 10_000, 100_000] } else { products };
    products.into_iter().try_for_each(|products| run(products, 1000))
}
