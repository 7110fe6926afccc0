//! SQLite in memory, with its whole state in a heap: a reset takes the database back to an older snapshot, and a child
//! of `fork(2)` saves it while this process goes on. Beside it, in processes whose SQLite has the C library's
//! allocator: `VACUUM INTO`, `sqlite3_serialize` and the backup API for the save, `ROLLBACK TO` and the backup API for
//! the way back.
//! `cargo run --release -p hugefork-bench --example sqlite_time_travel [ROWS]`
//!
//! ```text
//! 100000 rows, medians of 5:
//! back over 1000 transfers                      ROLLBACK TO      2.39 ms
//! back over 1000 transfers                       backup API     83.04 ms
//! back over 1000 transfers                         hugefork      0.42 ms
//! fork after a reset of half the database          hugefork     30.06 ms
//! longest transfer during a save                VACUUM INTO    206.95 ms
//! longest transfer during a save                 backup API     77.20 ms
//! longest transfer during a save                   hugefork      1.39 ms
//! longest transfer during a save          sqlite3_serialize     58.39 ms
//! save                                          VACUUM INTO    207.27 ms
//! save                                           backup API     79.94 ms
//! save                                             hugefork    402.46 ms
//! save                                    sqlite3_serialize     89.92 ms
//! ```
//! The save in a child takes longest, but no thread waits for it. The first fork after a large reset takes longer than
//! others.
//!
//! # Why a reset does not break SQLite
//! `SQLITE_CONFIG_MALLOC` puts all memory that SQLite allocates into the heap: connections, statements, caches of
//! pages, and with them the database. The rest are variables of the C code (`sqlite3.c` 3.54 marks most of them with
//! `SQLITE_WSD`, "writable static data"), which a reset leaves as they are. So they must be right before and after:
//!
//! * The configuration, the list of file systems and the built-in functions are made before the first snapshot, and
//!   nothing changes them later.
//! * SQLite has no locks of its own (`SQLITE_CONFIG_MUTEX`): one lock guards all use of SQLite, and lies in the heap
//!   itself ([`Rooted`]). So it is free in each snapshot and in each child. Locks outside of the heap would not do: a
//!   child has the heap as it was between two operations, and other memory as it was at `fork(2)`, some time later.
//! * Caches of pages are separate (`PCacheGlobal.separateCache`), as this program gives SQLite no buffer for pages: the
//!   global group of caches is never used.
//! * `mem0` and `sqlite3Stat` count memory. `SQLITE_CONFIG_MEMSTATUS` switches that off, but for one count of
//!   `sqlite3_status`, `SQLITE_STATUS_PAGECACHE_OVERFLOW`, which is wrong after a reset and decides nothing.
//! * The generator of `random()` goes on after a reset, which is right.
//! * `inodeList` knows the files that are open, so none may be open at a snapshot or reset: `temp_store` keeps
//!   temporary tables in memory, and a save opens its file and closes it again. `sqlite3SharedCacheList` and
//!   `memdb_g` know databases with shared caches and names, which this program does not use.
//!
//! `rusqlite` has a part of the connection outside of the heap, which is older than the snapshot and does not change.
//! Its statements and rows live only inside of an operation.

use std::alloc::Layout;
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use allocator_api2::alloc::Allocator;
use hugefork::{Children, Heap, Pool, Region, Rooted, Snapshot};
use rusqlite::backup::Backup;
use rusqlite::serialize::Data;
use rusqlite::{Connection, ffi};

const ROUNDS: usize = 5;

/// The heap of all databases of this process.
static HEAP: OnceLock<Heap> = OnceLock::new();

/// SQLite frees memory without its size, so each allocation has the size before it.
const BEFORE: usize = 8;

fn layout(len: usize) -> Layout {
    Layout::from_size_align(BEFORE + len, BEFORE).expect("SQLite allocates less than 2 GiB")
}

/// The beginning of an allocation, and its layout.
///
/// # Safety
/// It must be one of `allocate` or `resize`.
unsafe fn whole(at: *mut c_void) -> (NonNull<u8>, Layout) {
    // SAFETY: it has a size before it.
    unsafe {
        let begin = at.cast::<u8>().sub(BEFORE);
        (NonNull::new_unchecked(begin), layout(begin.cast::<usize>().read()))
    }
}

/// What SQLite gets: the memory behind its size.
fn with_size(memory: Result<NonNull<[u8]>, allocator_api2::alloc::AllocError>, len: usize) -> *mut c_void {
    let Ok(memory) = memory else { return null_mut() };
    // SAFETY: the memory has room for the size and `len` bytes.
    unsafe {
        memory.cast::<usize>().write(len);
        memory.cast::<u8>().add(BEFORE).as_ptr().cast()
    }
}

fn heap() -> &'static Heap {
    HEAP.get().expect("SQLite has got its allocator after the heap was made")
}

extern "C" fn allocate(len: c_int) -> *mut c_void {
    with_size(heap().allocate(layout(len as usize)), len as usize)
}

unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: SQLite frees what it has allocated.
    unsafe {
        let (begin, layout) = whole(at);
        heap().deallocate(begin, layout);
    }
}

unsafe extern "C" fn resize(at: *mut c_void, len: c_int) -> *mut c_void {
    // SAFETY: as above. `grow` and `shrink` of a heap differ in nothing but what they may be asked for.
    unsafe {
        let (begin, old) = whole(at);
        let new = layout(len as usize);
        let resized =
            if new.size() < old.size() { heap().shrink(begin, old, new) } else { heap().grow(begin, old, new) };
        with_size(resized, len as usize)
    }
}

unsafe extern "C" fn size(at: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { (whole(at).1.size() - BEFORE) as c_int }
}

extern "C" fn round_up(len: c_int) -> c_int {
    (len + 7) & !7
}

extern "C" fn begin(_: *mut c_void) -> c_int {
    ffi::SQLITE_OK
}

extern "C" fn end(_: *mut c_void) {}

/// SQLite's locks do nothing, but there must be some: `rusqlite` refuses `SQLITE_CONFIG_SINGLETHREAD`, because it
/// cannot know that one lock guards all use of SQLite.
extern "C" fn lock_of(_: c_int) -> *mut ffi::sqlite3_mutex {
    without_provenance_mut(16)
}

extern "C" fn no_work() -> c_int {
    ffi::SQLITE_OK
}

extern "C" fn no_lock(_: *mut ffi::sqlite3_mutex) {}

extern "C" fn no_wait(_: *mut ffi::sqlite3_mutex) -> c_int {
    ffi::SQLITE_OK
}

/// Has SQLite allocate from a heap of `len` bytes. This comes before any other use of SQLite.
fn move_sqlite(len: usize) -> Result<&'static Heap, Box<dyn Error>> {
    let pool = Pool::builder().name("sqlite").capacity(3 * len).children(Children::Inherit).build()?;
    HEAP.set(pool.heap(len)?).map_err(|_| "SQLite has a heap")?;
    let methods = ffi::sqlite3_mem_methods {
        xMalloc: Some(allocate),
        xFree: Some(free),
        xRealloc: Some(resize),
        xSize: Some(size),
        xRoundup: Some(round_up),
        xInit: Some(begin),
        xShutdown: Some(end),
        pAppData: null_mut(),
    };
    let locks = ffi::sqlite3_mutex_methods {
        xMutexInit: Some(no_work),
        xMutexEnd: Some(no_work),
        xMutexAlloc: Some(lock_of),
        xMutexFree: Some(no_lock),
        xMutexEnter: Some(no_lock),
        xMutexTry: Some(no_wait),
        xMutexLeave: Some(no_lock),
        xMutexHeld: None,
        xMutexNotheld: None,
    };
    // SAFETY: SQLite copies the methods, and is not initialized yet: it would refuse them.
    let refused = unsafe {
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const methods)
            | ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0)
            | ffi::sqlite3_config(ffi::SQLITE_CONFIG_MUTEX, &raw const locks)
    };
    if refused == 0 { Ok(heap()) } else { Err("SQLite was used before".into()) }
}

/// The connection, with the lock under which threads use SQLite.
enum Place {
    /// Nobody takes the inner lock: its type says that a connection has one user at a time. `Rooted` alone lets several
    /// threads read.
    Heap(&'static Heap, Rooted<'static, Mutex<Connection>>),
    Process(Mutex<Connection>),
}

/// A database in memory that several threads use.
pub(crate) struct Database {
    place: Place,
    rows: i64,
}

impl Database {
    /// A database of accounts, in the heap of this process or in the memory of the C library. If it is in the heap, the
    /// process uses SQLite inside of [`Database::with`] only.
    pub(crate) fn new(rows: i64, is_in_heap: bool) -> Result<Database, Box<dyn Error>> {
        let len = (rows as usize * 3000).next_multiple_of(2 << 20) + (64 << 20);
        let heap = is_in_heap.then(|| move_sqlite(len)).transpose()?;
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(
            "PRAGMA temp_store = MEMORY;
             CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, note TEXT NOT NULL);",
        )?;
        connection.execute(
            "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?1)
             INSERT INTO account SELECT id, 0, printf('%.*c', 1000, 'x') FROM n",
            [rows],
        )?;
        let place = match heap {
            Some(heap) => Place::Heap(heap, heap.put(Mutex::new(connection))),
            None => Place::Process(Mutex::new(connection)),
        };
        Ok(Database { place, rows })
    }

    /// Uses SQLite. Snapshots, resets and forks wait until `body` is done, and have all of it or nothing.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut Connection) -> T) -> T {
        match &self.place {
            Place::Heap(_, connection) => {
                connection.write(|inner| body(inner.get_mut().unwrap_or_else(PoisonError::into_inner)))
            }
            Place::Process(connection) => body(&mut connection.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn heap(&self) -> Result<&'static Heap, &'static str> {
        match &self.place {
            Place::Heap(heap, _) => Ok(heap),
            Place::Process(_) => Err("it lies in no heap"),
        }
    }

    /// Moves money from one account to another.
    pub(crate) fn transfer(&self, random: &mut u64) -> rusqlite::Result<()> {
        let mut account = || {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (*random >> 33) as i64 % self.rows
        };
        let (from, to) = (account(), account());
        let to = if to == from { (to + 1) % self.rows } else { to };
        let sql = "UPDATE account SET balance = balance + CASE id WHEN ?1 THEN -1 ELSE 1 END WHERE id IN (?1, ?2)";
        self.with(|connection| connection.prepare(sql)?.execute([from + 1, to + 1])).map(drop)
    }

    /// The database at this moment, to go back to.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Box<dyn Error>> {
        Ok(self.heap()?.snapshot()?)
    }

    /// Takes the database to a snapshot, which may be older or newer than the present.
    pub(crate) fn travel(&self, to: &Snapshot) -> Result<(), Box<dyn Error>> {
        // SAFETY: nothing outside of the heap owns memory in it but the lock with the connection, which is older than
        // all snapshots: statements live in `with` only, which is an operation. See the head of this file for SQLite's
        // own variables.
        unsafe { self.heap()?.reset_to(to)? };
        Ok(())
    }

    /// Saves into a new file in a child of `fork(2)`.
    pub(crate) fn save_in_child(&self, path: &str) -> Result<(), Box<dyn Error>> {
        // SAFETY: the lock of the connection is free in the child, since it lies in the heap, and SQLite takes no other
        // one. That of the C library's allocator is free, too.
        let child = unsafe {
            Region::in_child(&[], || match self.with(|connection| connection.execute("VACUUM INTO ?1", [path])) {
                Ok(_) => Vec::new(),
                Err(error) => error.to_string().into_bytes(),
            })?
        };
        let error = child.wait()?;
        if error.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&error).into()) }
    }

    /// Checks a saved file, and removes it.
    pub(crate) fn check_and_remove(&self, path: &str) -> Result<(), Box<dyn Error>> {
        self.with(|_| check(&Connection::open(path)?, self.rows))?;
        Ok(std::fs::remove_file(path)?)
    }
}

/// Whether a database has all accounts, at one moment: transfers leave the sum as it is.
pub(crate) fn check(connection: &Connection, rows: i64) -> Result<(), Box<dyn Error>> {
    let found: (i64, i64) =
        connection.query_row("SELECT count(*), sum(balance) FROM account", (), |row| Ok((row.get(0)?, row.get(1)?)))?;
    if found == (rows, 0) { Ok(()) } else { Err(format!("{found:?} accounts and their sum").into()) }
}

/// Goes to two older states and forth again. Queries prove it.
pub(crate) fn show(database: &Database) -> Result<(), Box<dyn Error>> {
    let ask = |sql: &str| database.with(|connection| connection.query_row(sql, (), |row| row.get::<_, i64>(0)));
    let run = |sql: &str| database.with(|connection| connection.execute_batch(sql));
    let monday = database.snapshot()?;
    run("CREATE TABLE news(text); INSERT INTO news VALUES('a'), ('b'); DELETE FROM account WHERE id % 2 = 0")?;
    let tuesday = database.snapshot()?;
    run("DROP TABLE account")?;
    let no_account = ask("SELECT count(*) FROM account").unwrap_err();
    println!("today: {no_account}");
    database.travel(&tuesday)?;
    println!("tuesday: {} accounts, {} news", ask("SELECT count(*) FROM account")?, ask("SELECT count(*) FROM news")?);
    assert_eq!(ask("SELECT count(*) FROM account")?, (database.rows + 1) / 2);
    database.travel(&monday)?;
    println!("monday: {} accounts", ask("SELECT count(*) FROM account")?);
    assert!(ask("SELECT count(*) FROM news").unwrap_err().to_string().contains("no such table"));
    database.travel(&tuesday)?;
    assert_eq!(ask("SELECT count(*) FROM news")?, 2);
    database.travel(&monday)?;
    database.with(|connection| check(connection, database.rows))
}

/// Runs `save` while another thread makes transfers. Prints the longest time that one took.
fn save_beside(
    name: &str,
    database: &Database,
    save: impl FnOnce(&str) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("hugefork-{}-{name}.db", std::process::id()));
    let path = path.to_str().ok_or("a folder with another name")?;
    let (is_writing, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let writes = || -> rusqlite::Result<_> {
        let (mut longest, mut random) = (Duration::ZERO, 88_172_645_463_325_252);
        while !is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            database.transfer(&mut random)?;
            longest = longest.max(begun.elapsed());
            is_writing.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(longest)
    };
    let (longest, took) = std::thread::scope(|scope| -> Result<_, Box<dyn Error>> {
        let writer = scope.spawn(writes);
        while !is_writing.load(Ordering::Relaxed) && !writer.is_finished() {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        let saved = save(path);
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        saved?;
        Ok((writer.join().expect("no panic")?, took))
    })?;
    database.check_and_remove(path)?;
    println!("{name}:longest transfer during a save {}", longest.as_micros());
    println!("{name}:save {}", took.as_micros());
    Ok(())
}

/// Copies by the backup API, in one step: each commit to a database in memory begins the backup anew (`sqlite3.c`,
/// `sqlite3PagerCommitPhaseOne`), so one of several steps does not end beside a writer.
fn back_up(from: &Connection, to: &mut Connection) -> rusqlite::Result<()> {
    Backup::new(from, to)?.run_to_completion(c_int::MAX, Duration::ZERO, None)
}

/// Measures one kind of database, once.
pub(crate) fn measure(database: &Database) -> Result<(), Box<dyn Error>> {
    let mut random = 1_234_567;
    let mut transfers = || (0..1000).try_for_each(|_| database.transfer(&mut random));
    let said = |name: &str, begun: Instant| println!("{name} {}", begun.elapsed().as_micros());
    if database.heap().is_ok() {
        save_beside("hugefork", database, |path| database.save_in_child(path))?;
        let before = database.snapshot()?;
        transfers()?;
        let begun = Instant::now();
        database.travel(&before)?;
        said("hugefork:back over 1000 transfers", begun);
        database.with(|connection| check(connection, database.rows))?;
        show(database)?;
        let begun = Instant::now();
        database.save_in_child("/dev/null/none").expect_err("there is no such folder");
        said("hugefork:fork after a reset of half the database", begun);
        return Ok(());
    }
    save_beside("VACUUM INTO", database, |path| {
        database.with(|connection| connection.execute("VACUUM INTO ?1", [path])).map(drop).map_err(Into::into)
    })?;
    save_beside("sqlite3_serialize", database, |path| {
        // The copy is made under the lock, and written without.
        let copy = database.with(|connection| match connection.serialize("main")? {
            Data::Owned(copy) => Ok(copy),
            Data::Shared(_) => Err(rusqlite::Error::InvalidQuery),
        })?;
        Ok(std::fs::write(path, &*copy)?)
    })?;
    save_beside("backup API", database, |path| {
        let mut to = Connection::open(path)?;
        to.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF")?; // as with VACUUM INTO
        Ok(database.with(|from| back_up(from, &mut to))?)
    })?;
    database.with(|connection| connection.execute_batch("SAVEPOINT before"))?;
    transfers()?;
    let begun = Instant::now();
    database.with(|connection| connection.execute_batch("ROLLBACK TO before; RELEASE before"))?;
    said("ROLLBACK TO:back over 1000 transfers", begun);
    let mut copy = Connection::open_in_memory()?;
    database.with(|from| back_up(from, &mut copy))?;
    transfers()?;
    let begun = Instant::now();
    database.with(|to| back_up(&copy, to))?;
    said("backup API:back over 1000 transfers", begun);
    database.with(|connection| check(connection, database.rows))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rows = arguments.first().map_or("100000", String::as_str);
    if let Some(kind) = arguments.get(1) {
        return measure(&Database::new(rows.parse()?, kind == "heap")?);
    }
    // Each kind has processes of its own, by turns.
    let mut samples = std::collections::BTreeMap::<(String, String), Vec<u64>>::new();
    for round in 0..ROUNDS {
        for kind in ["heap", "malloc"] {
            let output = Command::new(std::env::current_exe()?).args([rows, kind]).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into());
            }
            for line in String::from_utf8(output.stdout)?.lines() {
                let figure = line
                    .rsplit_once(' ')
                    .and_then(|(what, figure)| Some((what.split_once(':')?, figure.parse().ok()?)));
                match figure {
                    Some(((name, what), figure)) => {
                        samples.entry((what.to_owned(), name.to_owned())).or_default().push(figure);
                    }
                    None if round == 0 => println!("{line}"),
                    None => {}
                }
            }
        }
    }
    println!("{rows} rows, medians of {ROUNDS}:");
    for ((what, name), mut samples) in samples {
        samples.sort_unstable();
        println!("{what:39} {name:>17} {:9.2} ms", samples[ROUNDS / 2] as f64 / 1e3);
    }
    Ok(())
}
