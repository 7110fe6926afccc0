//! Measures the cost of saving for Redis, without and with `hugefork run`. Prints a table with a row for each way to
//! run Redis.
//!
//! ```sh
//! cargo run --release -p hugefork-bench --example redis -- plain run pool
//! cargo run --release -p hugefork-bench --example redis -- --keys 600000 --rate 15000 --every 60 plain run plain run
//! ```
//! The example starts a `redis-server` on a socket in a new directory, and fills it with `--keys` values of 1 KiB. Then
//! `--connections` connections set random keys, `--pipeline` commands at a time. They begin some seconds before the
//! first save, and go on during each of the `--saves` runs of BGSAVE and for `--every` seconds after it. The figures
//! cover all saves but the first. They begin at the BGSAVE, so they include commands that wait for the fork. In the end
//! a second server loads the last save. Its digest must be the one that the first server had when that save began.
//!
//! With `--rate`, the connections set that number of keys a second, however slow the server is, and a latency counts
//! from the moment at which the command was due. Otherwise a connection waits for its answers before it sends more
//! commands.
//!
//! A client without a processor sends late. With `--rate`, the last column has the client's own lateness. A latency up
//! to that is not the server's fault.
//!
//! The memory is the fall of `MemAvailable`, because `RSS` counts some of a pool's memory twice.
//!
//! | way | |
//! |---|---|
//! | `plain` | as it is |
//! | `thp` | with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`; Redis's jemalloc does not read it |
//! | `run`, `pool` | `hugefork run`, and that with `--pool` |
//!
//! The command is the one that the variable `HUGEFORK` names, or else the one in `PATH`.

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

const VALUE: usize = 1024;
/// The load before the first save.
const BEFORE: Duration = Duration::from_secs(5);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    let Asked { keys, connections, pipeline, .. } = asked;
    print!("{keys} keys of {VALUE} bytes, {connections} connections, {pipeline} commands at a time");
    println!("{}\n", if asked.rate > 0 { format!(", {} a second", asked.rate) } else { String::new() });
    println!(
        "| | first fork, ms | later forks | SET/s before, while, after | p99, p99.9 and max, ms, before | while | after | \
         a save lasts, s | memory at its peak, MiB | client late, p99.9 and max, ms, while | after |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for way in &asked.ways {
        println!("{}", row(way, &asked)?);
    }
    Ok(())
}

struct Asked {
    keys: usize,
    pipeline: usize,
    connections: usize,
    saves: usize,
    /// The number of keys to set a second; 0 for as many as the server accepts.
    rate: usize,
    /// Seconds from the end of one save to the next.
    every: usize,
    ways: Vec<String>,
}

impl Asked {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Asked> {
        let (keys, every, ways) = (2_000_000, 10, Vec::new());
        let mut asked = Asked { keys, pipeline: 16, connections: 16, saves: 5, rate: 0, every, ways };
        while let Some(word) = words.next() {
            let number = match word.as_str() {
                "--keys" => &mut asked.keys,
                "--pipeline" => &mut asked.pipeline,
                "--connections" => &mut asked.connections,
                "--saves" => &mut asked.saves,
                "--rate" => &mut asked.rate,
                "--every" => &mut asked.every,
                "plain" | "thp" | "run" | "pool" => {
                    asked.ways.push(word);
                    continue;
                }
                _ => return Err(format!("{word} is neither an option nor plain, thp, run or pool").into()),
            };
            *number = words.next().ok_or("a number is missing at the end")?.parse()?;
        }
        if asked.ways.is_empty() || [asked.keys, asked.pipeline, asked.connections, asked.saves].contains(&0) {
            return Err("name one of plain, thp, run, pool; all numbers are at least 1".into());
        }
        Ok(asked)
    }
}

/// Measures one way.
fn row(way: &str, asked: &Asked) -> Result<String> {
    let (mut before, mut saving, mut after) = (Tally::with_room(), Tally::with_room(), Tally::with_room());
    let (directory, start) = (Directory::new()?, available()?);
    let mut least = start;
    let mut redis = Redis::start(way, &directory.0)?;
    redis.expect(&format!("debug populate {} key {VALUE}", asked.keys), "+OK")?;
    let mut load = Load::connect(&directory.0, asked)?;
    let (mut forks, every) = (Vec::new(), Duration::from_secs(asked.every as u64));
    // The first second finds everything cold.
    load.run(&mut Tally::default(), |since| Ok(since < BEFORE / 5))?;
    load.run(&mut before, |since| Ok(since < BEFORE))?;
    let mut digest = String::new();
    for save in 0..asked.saves {
        if save + 1 == asked.saves {
            digest = redis.ask("debug digest")?;
        }
        // Commands that the connections send from now on come after the BGSAVE, and wait for its fork.
        redis.send("bgsave")?;
        let (mut first, mut has_begun) = (Tally::default(), false);
        load.run(if save == 0 { &mut first } else { &mut saving }, |_| {
            if !has_begun {
                redis.answers("bgsave", "+Background saving started")?;
                has_begun = true;
            }
            least = least.min(available()?);
            Ok(redis.info("rdb_bgsave_in_progress")? == "1")
        })?;
        load.run(if save == 0 { &mut first } else { &mut after }, |since| Ok(since < every))?;
        if redis.info("rdb_last_bgsave_status")? != "ok" {
            return Err(format!("{way}: Redis could not save; look into its log").into());
        }
        forks.push(redis.info("latest_fork_usec")?.parse::<u64>()? as f64 / 1e3);
    }
    let peak = start.saturating_sub(least) >> 20;
    drop((load, redis));
    let mut again = Redis::start(way, &directory.0)?;
    let found = again.ask("debug digest")?;
    if found != digest {
        return Err(format!("{way}: what was saved has the digest {found}, and what was there had {digest}").into());
    }
    let mut later = forks.split_off(1);
    later.sort_unstable_by(f64::total_cmp);
    let later = match later[..] {
        [] => "–".to_owned(),
        [least, .., most] => format!("{:.1} ({least:.1}–{most:.1})", later[later.len() / 2]),
        [one] => format!("{one:.1}"),
    };
    let rates = [&before, &saving, &after].map(|tally| format!("{:.0}", tally.rate())).join(", ");
    let lasts = saving.took.as_secs_f64() / (asked.saves - 1) as f64;
    let late = [&mut saving, &mut after].map(Tally::lateness).join(" | ");
    let latencies = [&mut before, &mut saving, &mut after].map(Tally::latencies).join(" | ");
    let row = format!("| {way} | {:.1} | {later} | {rates} | {latencies} | {lasts:.2} | {peak} | {late} |", forks[0]);
    // After a single save there are no figures but those of the first.
    Ok(row.replace("NaN", "–"))
}

/// The bytes of memory that the system can still give to programs.
fn available() -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("/proc/meminfo says nothing")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

/// A new directory, which goes with this.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory> {
        let path = std::env::temp_dir().join(format!("hugefork-redis-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server, and a connection to it.
struct Redis {
    server: Child,
    connection: Connection,
}

impl Redis {
    fn start(way: &str, directory: &Path) -> Result<Redis> {
        let mut command = Command::new("redis-server");
        match way {
            "plain" => {}
            "thp" => _ = command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
            _ => {
                command = Command::new(std::env::var_os("HUGEFORK").unwrap_or_else(|| "hugefork".into()));
                command.args(["run", "--quiet"]).args((way == "pool").then_some("--pool"));
                command.args(["--", "redis-server"]);
            }
        }
        command.args(["--port", "0", "--unixsocket", "socket", "--save", "", "--enable-debug-command", "yes"]);
        command.args(["--rdbcompression", "no", "--logfile", "log", "--dir"]);
        let socket = directory.join("socket");
        let _ = fs::remove_file(&socket);
        let mut server = command.arg(directory).stdout(Stdio::null()).spawn()?;
        loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                let mut redis = Redis { server, connection: Connection::new(stream) };
                while redis.ask("ping")? != "+PONG" {
                    sleep(Duration::from_millis(50));
                }
                return Ok(redis);
            }
            if let Some(status) = server.try_wait()? {
                return Err(format!("redis-server ended with {status}; the line above says why").into());
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn send(&mut self, words: &str) -> Result<()> {
        Ok(self.connection.stream.write_all(format!("{words}\r\n").as_bytes())?)
    }

    fn ask(&mut self, words: &str) -> Result<String> {
        self.send(words)?;
        self.connection.line()
    }

    fn expect(&mut self, words: &str, answer: &str) -> Result<()> {
        self.send(words)?;
        self.answers(words, answer)
    }

    fn answers(&mut self, words: &str, answer: &str) -> Result<()> {
        match self.connection.line()? {
            said if said == answer => Ok(()),
            said => Err(format!("Redis answers to {words}: {said}").into()),
        }
    }

    fn info(&mut self, name: &str) -> Result<String> {
        let section = if name.starts_with("rdb") { "persistence" } else { "stats" };
        let mut rest: usize = self.ask(&format!("info {section}"))?.trim_start_matches('$').parse()?;
        let mut value = None;
        while rest > 0 {
            let line = self.connection.line()?;
            rest = rest.saturating_sub(line.len() + 2);
            value = line.strip_prefix(name).and_then(|line| line.strip_prefix(':')).map(str::to_owned).or(value);
        }
        self.connection.line()?;
        value.ok_or_else(|| format!("Redis has no {name}").into())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A connection, and the bytes that it has received and not returned yet.
struct Connection {
    stream: UnixStream,
    come: Vec<u8>,
}

impl Connection {
    fn new(stream: UnixStream) -> Connection {
        Connection { stream, come: Vec::new() }
    }

    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.come.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.come[..end]).into_owned();
                self.come.drain(..end + 2);
                return Ok(line);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => return Err("Redis has closed the connection".into()),
                count => self.come.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

/// Connections that set random keys.
struct Load {
    streams: Vec<UnixStream>,
    keys: usize,
    pipeline: usize,
    rate: usize,
    random: u64,
}

impl Load {
    fn connect(directory: &Path, asked: &Asked) -> Result<Load> {
        let connect = |_| UnixStream::connect(directory.join("socket"));
        let streams = (0..asked.connections).map(connect).collect::<std::io::Result<_>>()?;
        Ok(Load {
            streams,
            keys: asked.keys,
            pipeline: asked.pipeline,
            rate: asked.rate,
            random: 88_172_645_463_325_252,
        })
    }

    /// Sets keys until `goes_on` returns false. Calls it every 20 ms.
    fn run(&mut self, tally: &mut Tally, goes_on: impl FnMut(Duration) -> Result<bool>) -> Result<()> {
        if self.rate > 0 { self.run_at_rate(tally, goes_on) } else { self.run_by_turns(tally, goes_on) }
    }

    /// Sends each batch when it is due, on the next connection, and reads the answers that have arrived.
    fn run_at_rate(&mut self, tally: &mut Tally, mut goes_on: impl FnMut(Duration) -> Result<bool>) -> Result<()> {
        let (began, mut asked) = (Instant::now(), Instant::now());
        let every = Duration::from_secs_f64(self.pipeline as f64 / self.rate as f64);
        let mut meant = vec![VecDeque::new(); self.streams.len()];
        let (mut nth, mut sends) = (0_u32, true);
        while sends || meant.iter().any(|meant| !meant.is_empty()) {
            if asked.elapsed() > Duration::from_millis(20) && sends {
                sends = goes_on(began.elapsed())?;
                asked = Instant::now();
            }
            let due = began + every * nth;
            if sends && due <= Instant::now() {
                let stream = nth as usize % self.streams.len();
                let sent = self.send(stream)?;
                tally.late.push(sent.saturating_duration_since(due));
                meant[stream].push_back(due);
                nth += 1;
            }
            for (stream, meant) in meant.iter_mut().enumerate() {
                while !meant.is_empty() && has_come(&self.streams[stream], 5 * self.pipeline)? {
                    self.read(stream)?;
                    tally.batches.extend(meant.pop_front().map(|due: Instant| due.elapsed()));
                    tally.commands += self.pipeline;
                }
            }
            let next = began + every * nth;
            sleep(next.saturating_duration_since(Instant::now()).min(Duration::from_micros(50)));
        }
        tally.took += began.elapsed();
        Ok(())
    }

    /// Reads the answers to one batch of commands.
    fn read(&mut self, nth: usize) -> Result<()> {
        let mut answers = vec![0; 5 * self.pipeline];
        self.streams[nth].read_exact(&mut answers)?;
        match answers.chunks(5).all(|answer| answer == b"+OK\r\n") {
            true => Ok(()),
            false => Err(format!("Redis answers {}", String::from_utf8_lossy(&answers)).into()),
        }
    }

    fn run_by_turns(&mut self, tally: &mut Tally, mut goes_on: impl FnMut(Duration) -> Result<bool>) -> Result<()> {
        let (began, mut asked) = (Instant::now(), Instant::now());
        let mut sent = vec![began; self.streams.len()];
        for (nth, sent) in sent.iter_mut().enumerate() {
            *sent = self.send(nth)?;
        }
        let mut is_over = false;
        while !is_over {
            if asked.elapsed() > Duration::from_millis(20) {
                is_over = !goes_on(began.elapsed())?;
                asked = Instant::now();
            }
            for (nth, sent) in sent.iter_mut().enumerate() {
                self.read(nth)?;
                tally.batches.push(sent.elapsed());
                tally.commands += self.pipeline;
                if !is_over {
                    *sent = self.send(nth)?;
                }
            }
        }
        tally.took += began.elapsed();
        Ok(())
    }

    fn send(&mut self, nth: usize) -> Result<Instant> {
        let mut bytes = Vec::with_capacity(self.pipeline * (VALUE + 64));
        for _ in 0..self.pipeline {
            for shift in [(13, true), (7, false), (17, true)] {
                self.random ^= if shift.1 { self.random << shift.0 } else { self.random >> shift.0 };
            }
            let key = format!("key:{}", self.random as usize % self.keys);
            write!(bytes, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE}\r\n", key.len())?;
            bytes.resize(bytes.len() + VALUE, b'a' + (self.random >> 32) as u8 % 26);
            bytes.extend_from_slice(b"\r\n");
        }
        let sent = Instant::now();
        self.streams[nth].write_all(&bytes)?;
        Ok(sent)
    }
}

/// Whether so many bytes can be read.
fn has_come(stream: &UnixStream, len: usize) -> Result<bool> {
    let mut bytes = vec![0; len];
    match rustix::net::recv(stream, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Err("Redis has closed the connection".into()),
        Ok((_, come)) => Ok(come == len),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How long answers took.
#[derive(Default)]
struct Tally {
    batches: Vec<Duration>,
    /// The lateness of each batch, at a fixed rate.
    late: Vec<Duration>,
    commands: usize,
    took: Duration,
}

impl Tally {
    /// A tally with touched memory for many batches, so that no page fault makes the client late.
    fn with_room() -> Tally {
        let room = || {
            let mut room = vec![Duration::MAX; 1 << 20];
            room.clear();
            room
        };
        Tally { batches: room(), late: room(), ..Tally::default() }
    }

    fn rate(&self) -> f64 {
        self.commands as f64 / self.took.as_secs_f64()
    }

    fn latencies(&mut self) -> String {
        let [p99, p999, max] = [0.99, 0.999, 1.0].map(|share| quantile(&mut self.batches, share));
        format!("{p99:.2}, {p999:.2}, {max:.1}")
    }

    fn lateness(&mut self) -> String {
        if self.late.is_empty() {
            return "–".to_owned();
        }
        let [p999, max] = [0.999, 1.0].map(|share| quantile(&mut self.late, share));
        format!("{p999:.2}, {max:.1}")
    }
}

/// In milliseconds.
fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get((last as f64 * share) as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}
