//! How long a client waits for a `SET` while the server saves.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::write_string;

const VALUE: usize = 1000;
const ROUNDS: usize = 5;

/// A connection to a server.
pub(crate) struct Client {
    from: BufReader<TcpStream>,
}

impl Client {
    /// Connects, also to a server that has just been started.
    pub(crate) fn new(port: u16) -> io::Result<Client> {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Err(_) if begun.elapsed() < Duration::from_secs(10) => std::thread::sleep(Duration::from_millis(10)),
                stream => {
                    let stream = stream?;
                    stream.set_nodelay(true)?;
                    return Ok(Client { from: BufReader::new(stream) });
                }
            }
        }
    }

    fn send(&mut self, commands: &[Vec<&[u8]>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for command in commands {
            write!(bytes, "*{}\r\n", command.len())?;
            command.iter().try_for_each(|part| write_string(&mut bytes, part))?;
        }
        self.from.get_ref().write_all(&bytes)
    }

    /// The next answer: a string, or the line that another one consists of.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let Some(len) = line.trim_end().strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) else {
            return Ok(line.trim_end().into());
        };
        let mut bytes = vec![0; len + 2];
        self.from.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    pub(crate) fn call(&mut self, command: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.send(&[command.to_vec()])?;
        self.answer()
    }

    /// Sets all keys, many at a time.
    pub(crate) fn fill(&mut self, entries: u64) -> io::Result<()> {
        for first in (0..entries).step_by(100) {
            let texts: Vec<_> = (first..entries.min(first + 100)).map(|nth| (key(nth), value(nth))).collect();
            self.send(&texts.iter().map(|(key, value)| vec![&b"SET"[..], key, value]).collect::<Vec<_>>())?;
            texts.iter().try_for_each(|_| self.answer().map(drop))?;
        }
        Ok(())
    }

    /// Has the server save, and waits until it has done so.
    pub(crate) fn save(&mut self) -> Result<(), Box<dyn Error>> {
        let answer = self.call(&[b"BGSAVE"])?;
        if !answer.starts_with(b"+Background saving started") {
            return Err(String::from_utf8_lossy(&answer).into());
        }
        while !String::from_utf8_lossy(&self.call(&[b"INFO", b"persistence"])?).contains("bgsave_in_progress:0") {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

pub(crate) fn key(nth: u64) -> Vec<u8> {
    format!("key:{nth:012}").into()
}

/// Values begin with their key.
pub(crate) fn value(nth: u64) -> Vec<u8> {
    let mut value = key(nth);
    value.resize(VALUE, b'.');
    value
}

/// Checks a saved file: it has each key once, with its value.
pub(crate) fn check(path: &Path, entries: u64) -> Result<(), Box<dyn Error>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut text = || -> io::Result<Vec<u8>> {
        let mut len = [0; 8];
        file.read_exact(&mut len)?;
        let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
        file.read_exact(&mut bytes).map(|()| bytes)
    };
    let mut is_found = vec![false; entries as usize];
    for _ in 0..entries {
        let (key, saved) = (text()?, text()?);
        let nth: u64 = std::str::from_utf8(&key)?.trim_start_matches("key:").parse()?;
        let is_first = !std::mem::replace(&mut is_found[nth as usize], true);
        if !is_first || saved != value(nth) {
            return Err(format!("the file has something else for key {nth}").into());
        }
    }
    if text().is_ok() { Err("the file has more".into()) } else { Ok(()) }
}

/// Sends one `SET` after the other while `body` runs. Returns the longest time that one took, and their number.
fn longest_while<T>(port: u16, entries: u64, body: impl FnOnce() -> T) -> io::Result<(T, Duration, u64)> {
    let mut client = Client::new(port)?;
    let is_over = AtomicBool::new(false);
    let writes = || -> io::Result<_> {
        let (mut longest, mut sets) = (Duration::ZERO, 0);
        while !is_over.load(Ordering::Relaxed) {
            let nth = (sets * 7919) % entries; // all over the map
            let (key, value) = (key(nth), value(nth));
            let begun = Instant::now();
            client.call(&[b"SET", &key, &value])?;
            longest = longest.max(begun.elapsed());
            sets += 1;
        }
        Ok((longest, sets))
    };
    std::thread::scope(|scope| {
        let writes = scope.spawn(writes);
        std::thread::sleep(Duration::from_millis(20));
        let result = body();
        is_over.store(true, Ordering::Relaxed);
        let (longest, sets) = writes.join().expect("no panic")?;
        Ok((result, longest, sets))
    })
}

/// A server process, which ends when this is dropped.
struct Process(Child);

impl Process {
    fn start(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> io::Result<Process> {
        Command::new(program).args(arguments).stdout(Stdio::null()).spawn().map(Process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Saves by turns with this server and with `redis-server`. Prints medians.
pub(crate) fn beside_redis(entries: u64) -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("hugefork-resp-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (ports, folder_name) = (["7480", "7481"], folder.to_str().ok_or("a folder with another name")?);
    let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
    let _ours = Process::start(std::env::current_exe()?, &[ports[0], ours.to_str().ok_or("as above")?])?;
    let options = ["--save", "", "--rdbcompression", "no", "--dbfilename", "theirs", "--dir", folder_name];
    let redis = Process::start("redis-server", &[&["--port", ports[1]], &options[..]].concat());
    let is_redis_there = redis.as_ref().inspect_err(|error| println!("no redis-server: {error}")).is_ok();

    let subjects = [("hugefork", 7480, &ours), ("redis-server", 7481, &theirs)];
    let subjects = &subjects[..1 + usize::from(is_redis_there)];
    for (_, port, _) in subjects {
        Client::new(*port)?.fill(entries)?;
    }
    let mut samples = vec![[const { Vec::new() }; 4]; subjects.len()];
    for _ in 0..ROUNDS {
        for ((_, port, path), samples) in subjects.iter().zip(&mut samples) {
            let mut client = Client::new(*port)?;
            let begun = Instant::now();
            let (saved, longest, sets) = longest_while(*port, entries, || client.save())?;
            let took = begun.elapsed();
            saved?;
            let (_, idle, _) = longest_while(*port, entries, || std::thread::sleep(took))?;
            let rate = sets as f64 / took.as_secs_f64();
            let figures = [longest.as_secs_f64() * 1e3, idle.as_secs_f64() * 1e3, took.as_secs_f64(), rate];
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(figure));
            if **path == ours {
                check(path, entries)?;
            }
            for nth in (0..entries).step_by(entries as usize / 100) {
                assert!(client.call(&[b"GET", &key(nth)])? == value(nth), "the value of key {nth}");
            }
            assert!(std::fs::metadata(path)?.len() > entries * VALUE as u64, "it has all values");
            std::fs::remove_file(path)?;
        }
    }
    println!("{entries} entries of {VALUE} bytes, one client, medians of {ROUNDS}:");
    for ((name, ..), samples) in subjects.iter().zip(&mut samples) {
        let [longest, idle, took, rate] = samples.each_mut().map(|samples| {
            samples.sort_by(f64::total_cmp);
            samples[ROUNDS / 2]
        });
        println!(
            "{name:>12}: the longest SET takes {longest:.1} ms during a save, {idle:.1} ms without; \
             {rate:.0} SETs/s during a save of {took:.1} s"
        );
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}
