//! The examples do what they say: they check themselves.

#[path = "../examples/lua_reset.rs"]
#[allow(dead_code)] // It has more data.
mod lua_reset;
#[path = "../examples/own_table.rs"]
mod own_table;
#[path = "../examples/sqlite_time_travel.rs"]
#[allow(dead_code)] // It starts processes.
mod sqlite_time_travel;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlite_time_travel::{Database, check, measure};

#[test]
fn a_program_runs_a_case_of_the_bench() {
    own_table::main().unwrap();
}

#[test]
fn each_request_finds_an_interpreter_as_it_was() {
    lua_reset::run(500, 50).unwrap();
}

/// Ends the threads, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_database_goes_back_and_forth_many_times_beside_threads() {
    const ROWS: i64 = 1000;
    let database = Database::new(ROWS, true).unwrap();
    measure(&database).unwrap();
    let path = std::env::temp_dir().join(format!("hugefork-database-{}.db", std::process::id()));
    let (is_over, transfers) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |sql: &str| database.with(|connection| connection.query_row(sql, (), |row| row.get::<_, String>(0)));
    std::thread::scope(|scope| {
        for mut random in [1, 2, 3] {
            let (database, is_over, transfers) = (&database, &is_over, &transfers);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    database.transfer(&mut random).unwrap();
                    transfers.fetch_add(1, Ordering::Relaxed);
                    // Sorts, and makes a temporary table.
                    let sql = "CREATE TEMP TABLE sorted AS SELECT * FROM account ORDER BY balance, note DESC LIMIT 9;
                               DROP TABLE sorted";
                    if random % 16 == 0 {
                        database.with(|connection| connection.execute_batch(sql)).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
        }
        let mut saved = vec![database.snapshot().unwrap()];
        let _over = Over(&is_over);
        for round in 0..400 {
            let enough = transfers.load(Ordering::Relaxed) + round as u64 * 7 % 16;
            while transfers.load(Ordering::Relaxed) < enough {
                std::thread::yield_now();
            }
            if round % 5 == 0 {
                saved.push(database.snapshot().unwrap());
                saved.drain(..saved.len().saturating_sub(4));
            } else {
                database.travel(&saved[round * 7 % saved.len()]).unwrap();
            }
            database.with(|connection| check(connection, ROWS)).unwrap();
            if round % 100 == 0 {
                assert_eq!(ask("PRAGMA integrity_check").unwrap(), "ok");
                database.save_in_child(path.to_str().unwrap()).unwrap();
                database.check_and_remove(path.to_str().unwrap()).unwrap();
            }
        }
    });
    assert_eq!(ask("PRAGMA integrity_check").unwrap(), "ok");
}
