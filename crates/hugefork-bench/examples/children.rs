//! The cost of a `fork(2)` to a parent with a large memory, by turns: a region that children inherit, transparent huge
//! pages, 4 KiB pages.
//!
//! ```sh
//! cargo run --release -p hugefork-bench --example children -- 1024 5000 200    # MiB, writes between forks, rest in ms
//! ```
//! Each subject is measured in processes of its own, which have 20 MiB of other memory. Each writes to pages anywhere
//! while the child lives, lets it end, and rests.

use std::error::Error;
use std::process::{Command, exit};
use std::time::{Duration, Instant};

use hugefork::{Children, Pool};

const SUBJECTS: [&str; 3] = ["hugefork", "thp", "4k"];
const TURNS: usize = 3;
const FORKS: usize = 9;
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// The memory of a subject, which stays until the process ends.
fn memory(subject: &str, len: usize) -> Result<*mut u8, Box<dyn Error>> {
    if subject == "hugefork" {
        let pool = Pool::builder().name("children").capacity(2 * len).children(Children::Inherit).build()?;
        let region = pool.region(len)?;
        let at = region.as_mut_ptr();
        std::mem::forget(region);
        return Ok(at);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len + HUGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    let at = at.wrapping_byte_add(at.addr().next_multiple_of(HUGE) - at.addr());
    let advice = if subject == "thp" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: a part of the mapping.
    unsafe { libc::madvise(at, len, advice) };
    Ok(at.cast())
}

/// Forks, and measures the call and the writes after it, in microseconds.
fn measure(subject: &str, len: usize, writes: usize, rest: Duration) -> Result<[Vec<u128>; 2], Box<dyn Error>> {
    let other = vec![1u8; 20 << 20];
    let at = memory(subject, len)?;
    // SAFETY: every address lies in the memory, which only this thread uses; a child has a copy.
    let write = |offset: usize, byte: u8| unsafe { at.add(offset).write_volatile(byte) };
    (0..len).step_by(PAGE).for_each(|offset| write(offset, 1));
    let (mut random, mut taken) = (88_172_645_463_325_252u64, [Vec::new(), Vec::new()]);
    for round in 0..FORKS {
        let (reader, writer) = std::io::pipe()?;
        let started = Instant::now();
        // SAFETY: the child makes only such calls as a child of one thread may make.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(writer);
            let _ = std::io::Read::read(&mut &reader, &mut [0]);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        if child < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        taken[0].push(started.elapsed().as_micros());
        let started = Instant::now();
        for _ in 0..writes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            write(random as usize % len, round as u8);
        }
        taken[1].push(started.elapsed().as_micros());
        drop((reader, writer));
        // SAFETY: writes nothing.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        std::thread::sleep(rest);
    }
    std::hint::black_box(&other);
    // The first fork of a process is special for all subjects.
    for list in &mut taken {
        list.remove(0);
    }
    Ok(taken)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |nth: usize, usual: usize| arguments.get(nth).map_or(Ok(usual), |text| text.parse());
    let (mib, writes, rest) = (number(0, 1024)?, number(1, 5000)?, number(2, 200)?);
    if let Some(subject) = arguments.get(3) {
        let [forks, costs] = measure(subject, mib << 20, writes, Duration::from_millis(rest as u64))?;
        forks.iter().zip(costs).for_each(|(fork, cost)| println!("{fork} {cost}"));
        exit(0);
    }
    let mut taken = SUBJECTS.map(|_| [Vec::new(), Vec::new()]);
    for _ in 0..TURNS {
        for (subject, taken) in SUBJECTS.iter().zip(&mut taken) {
            let of = [mib.to_string(), writes.to_string(), rest.to_string(), (*subject).to_owned()];
            let ran = Command::new(std::env::current_exe()?).args(of).output()?;
            for line in String::from_utf8(ran.stdout)?.lines() {
                let (fork, cost) = line.split_once(' ').ok_or("two numbers")?;
                taken[0].push(fork.parse::<u64>()?);
                taken[1].push(cost.parse::<u64>()?);
            }
        }
    }
    println!("{mib} MiB, {writes} writes between forks, {rest} ms of rest: medians (worst) in us");
    for (subject, taken) in SUBJECTS.iter().zip(&mut taken) {
        let [fork, cost] = taken.each_mut().map(|list| {
            list.sort_unstable();
            format!("{} ({})", list[list.len() / 2], list[list.len() - 1])
        });
        println!("{subject:<9} fork {fork:<16} writes after it {cost}");
    }
    Ok(())
}
