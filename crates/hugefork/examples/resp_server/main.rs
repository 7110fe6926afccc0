//! A server of strings that `redis-benchmark` and `redis-cli` can drive: `GET`, `SET`, `DEL`, `PING`, and `BGSAVE`,
//! which a child of `fork(2)` carries out while the server goes on.
//!
//! ```sh
//! cargo run --release -p hugefork --example resp_server -- 6380 cache.saved &
//! redis-benchmark -p 6380 -t set,get -n 200000 -r 100000 -d 100 -P 16
//! redis-cli -p 6380 bgsave
//! cargo run --release -p hugefork --example resp_server -- measure        # beside redis-server
//! ```
//!
//! ```text
//! 500000 entries of 1000 bytes, one client, medians of 5:
//!     hugefork: the longest SET takes 17.2 ms during a save, 3.2 ms without; 17182 SETs/s during a save of 1.0 s
//! redis-server: the longest SET takes 28.5 ms during a save, 17.4 ms without; 32385 SETs/s during a save of 3.5 s
//! ```
//! Client, server and child share two CPUs here, so some of these milliseconds are those of the scheduler.

use std::error::Error;
use std::fs::{File, rename};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use allocator_api2::vec::Vec as HeapVec;
use hashbrown::{DefaultHashBuilder, Equivalent, HashMap};
use hugefork::{Children, Heap, Pool, Region, Rooted};

pub(crate) mod measure;

type Text = HeapVec<u8, &'static Heap>;
type Cache = HashMap<Text, Text, DefaultHashBuilder, &'static Heap>;

/// Finds a text by its bytes.
#[derive(Hash)]
struct Bytes<'b>(&'b [u8]);

impl Equivalent<Text> for Bytes<'_> {
    fn equivalent(&self, text: &Text) -> bool {
        self.0 == text.as_slice()
    }
}

/// The longest string, as in Redis.
const LONGEST: usize = 512 << 20;

pub(crate) struct Server {
    heap: &'static Heap,
    cache: Rooted<'static, Cache>,
    path: PathBuf,
    is_saving: AtomicBool,
}

impl Server {
    /// A server that saves to `path`, with room for `len` bytes.
    pub(crate) fn new(len: usize, path: &Path) -> Result<Arc<Server>, Box<dyn Error>> {
        let pool = Pool::builder().name("strings").capacity(2 * len).children(Children::Inherit).build()?;
        let heap: &'static Heap = Box::leak(Box::new(pool.heap(len)?));
        let cache = heap.put(Cache::new_in(heap));
        Ok(Arc::new(Server { heap, cache, path: path.to_owned(), is_saving: AtomicBool::new(false) }))
    }

    /// Serves each connection in a thread of its own.
    pub(crate) fn listen(self: Arc<Server>, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&self);
            std::thread::spawn(move || {
                server.serve(&stream).unwrap_or_else(|error| eprintln!("a connection: {error}"))
            });
        }
    }

    fn serve(self: Arc<Server>, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut from, mut to) = (BufReader::new(stream), BufWriter::new(stream));
        while let Some(command) = read_command(&mut from)? {
            self.answer(&command, &mut to)?;
            if from.buffer().is_empty() {
                to.flush()?; // Answers to commands that came together go together.
            }
        }
        Ok(())
    }

    fn answer(self: &Arc<Server>, command: &[Vec<u8>], to: &mut impl Write) -> io::Result<()> {
        let Some((name, arguments)) = command.split_first() else { return Ok(()) };
        match (name.to_ascii_uppercase().as_slice(), arguments) {
            (b"PING", []) => to.write_all(b"+PONG\r\n"),
            (b"GET", [key]) => match self.cache.read(|cache| cache.get(&Bytes(key)).map(|value| value.to_vec())) {
                Some(value) => write_string(to, &value),
                None => to.write_all(b"$-1\r\n"),
            },
            (b"SET", [key, value]) => {
                self.cache.write(|cache| match cache.get_mut(&Bytes(key)) {
                    Some(old) => {
                        old.clear();
                        old.extend_from_slice(value);
                    }
                    None => _ = cache.insert(self.text(key), self.text(value)),
                });
                to.write_all(b"+OK\r\n")
            }
            (b"DEL", keys) => {
                let is_there = |key: &&Vec<u8>| self.cache.write(|cache| cache.remove(&Bytes(key))).is_some();
                write!(to, ":{}\r\n", keys.iter().filter(is_there).count())
            }
            (b"BGSAVE", []) => match self.save_in_background() {
                Ok(()) => to.write_all(b"+Background saving started\r\n"),
                Err(error) => write!(to, "-ERR {error}\r\n"),
            },
            (b"INFO", _) => {
                let is_saving = u8::from(self.is_saving.load(Ordering::Acquire));
                write_string(to, format!("rdb_bgsave_in_progress:{is_saving}\r\n").as_bytes())
            }
            // Clients ask for these first.
            (b"CONFIG", [_get, name]) => {
                to.write_all(b"*2\r\n")?;
                write_string(to, name)?;
                write_string(to, b"")
            }
            (b"COMMAND", _) => to.write_all(b"*0\r\n"),
            _ => to.write_all(b"-ERR unknown command\r\n"),
        }
    }

    fn text(&self, bytes: &[u8]) -> Text {
        let mut text = HeapVec::with_capacity_in(bytes.len(), self.heap);
        text.extend_from_slice(bytes);
        text
    }

    fn save_in_background(self: &Arc<Server>) -> Result<(), Box<dyn Error>> {
        if self.is_saving.swap(true, Ordering::AcqRel) {
            return Err("a save is in progress".into());
        }
        // SAFETY: the lock of the cache is free in the child: it lies in the heap, and the fork waits for `read` and
        // `write`. The child takes no other lock but that of the C library's allocator, which is free, too.
        let child = unsafe {
            Region::in_child(&[], || match self.cache.read(|cache| save(cache, &self.path)) {
                Ok(()) => Vec::new(),
                Err(error) => error.to_string().into_bytes(),
            })
        };
        let child = child.inspect_err(|_| self.is_saving.store(false, Ordering::Release))?;
        let server = Arc::clone(self);
        std::thread::spawn(move || {
            match child.wait() {
                Ok(error) if error.is_empty() => {}
                Ok(error) => eprintln!("the save has failed: {}", String::from_utf8_lossy(&error)),
                Err(error) => eprintln!("the save has failed: {error}"),
            }
            server.is_saving.store(false, Ordering::Release);
        });
        Ok(())
    }
}

/// Writes keys and values by turns, each after its length. The file at `path` is replaced when all is written.
fn save(cache: &Cache, path: &Path) -> io::Result<()> {
    let begun = path.with_extension("begun");
    let mut file = BufWriter::new(File::create(&begun)?);
    for text in cache.iter().flat_map(|(key, value)| [key, value]) {
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(text)?;
    }
    file.flush()?;
    rename(begun, path)
}

/// Reads an array of strings, as clients send each command. `None` at the end of the connection.
fn read_command(from: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = read_number(from, '*')? else { return Ok(None) };
    let string = |_| {
        let len = read_number(from, '$')?.filter(|&len| len <= LONGEST).ok_or(ErrorKind::InvalidData)?;
        let mut bytes = Vec::new();
        from.take(len as u64 + 2).read_to_end(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    (0..count).map(string).collect::<io::Result<_>>().map(Some)
}

/// Reads a line that consists of `kind` and a number.
fn read_number(from: &mut impl BufRead, kind: char) -> io::Result<Option<usize>> {
    let mut line = String::new();
    if from.take(32).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let number = line.strip_prefix(kind).and_then(|rest| rest.trim_end().parse().ok());
    number.map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn write_string(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write!(to, "${}\r\n", bytes.len())?;
    to.write_all(bytes)?;
    to.write_all(b"\r\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["measure"] => measure::beside_redis(500_000),
        ["measure", entries] => measure::beside_redis(entries.parse()?),
        [port, path] => {
            let listener = TcpListener::bind(("127.0.0.1", port.parse()?))?;
            Server::new(8 << 30, Path::new(path))?.listen(&listener);
            Ok(())
        }
        _ => Err("say a port and a file to save to, or `measure`".into()),
    }
}
