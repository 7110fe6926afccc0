//! Keeps all processes of a given name in huge pages until Ctrl-C: `cargo run --example
//! keep_by_name -- redis-server`.

use std::error::Error;

use hugefork_keep::{Keeper, Targets};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args_os().nth(1).ok_or("name a program, such as redis-server")?;
    let mut targets = Targets::new();
    targets.add_name(name);
    let mut keeper = Keeper::new(targets)?;
    let mut collapsed = 0;
    while let Some(time) = keeper.step() {
        keeper.wait(time);
        let now = keeper.report().processes.iter().map(|process| process.blocks_collapsed).sum();
        if now != collapsed {
            collapsed = now;
            println!("{collapsed} blocks of 2 MiB");
        }
    }
    Ok(())
}
