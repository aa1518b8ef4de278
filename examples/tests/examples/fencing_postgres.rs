//! The example `fencing_postgres` tells its story on a real server, as often as it is run, and
//! leaves no table there.

use std::env;
use std::io::{Write as _, stderr};

use postgres::{Client, NoTls};
use wheellock_fixture::{Postgres, TestProcess};

use crate::fencing::BOTH_STORIES;
use crate::support::{PATIENCE, example};

#[test]
fn postgres_refuses_the_stale_write_with_a_fence_only() {
    if !Postgres::is_installed() && env::var_os("WHEELLOCK_POSTGRES").is_none() {
        let reason =
            "not run: PostgreSQL is not installed (WHEELLOCK_POSTGRES=required fails here)";
        writeln!(stderr(), "{reason}").unwrap();
        return;
    }
    let server = Postgres::start();
    let mut command = example::<&str>("fencing_postgres", &[]);
    command.env("DATABASE_URL", server.parameters());
    // Tokens of the first run refuse none of the second run.
    for _ in 0..2 {
        let mut process = TestProcess::spawn(&mut command);
        for line in BOTH_STORIES {
            process.wait_for_line(line, PATIENCE);
        }
        assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
    }
    let mut database = Client::connect(&server.parameters(), NoTls).unwrap();
    let permanent = "SELECT count(*) FROM pg_class WHERE relpersistence = 'p' AND oid >= 16384";
    let left: i64 = database.query_one(permanent, &[]).unwrap().get(0);
    assert_eq!(left, 0, "permanent tables and indexes are left in the database");
}

#[test]
fn without_a_database_the_example_says_what_to_set() {
    let mut command = example::<&str>("fencing_postgres", &[]);
    let mut process = TestProcess::spawn(&mut command);
    assert_eq!(process.wait_for_exit(PATIENCE), 2, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    assert!(output.contains("Set DATABASE_URL, such as postgres://"), "{output}");
}

#[test]
fn an_unreachable_database_is_an_error_with_its_cause() {
    let mut command = example::<&str>("fencing_postgres", &[]);
    command.env("DATABASE_URL", "host=/no/such/folder user=postgres");
    let mut process = TestProcess::spawn(&mut command);
    assert_eq!(process.wait_for_exit(PATIENCE), 1, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    assert!(output.contains("fencing_postgres: error connecting to server"), "{output}");
    assert!(output.contains("  because: "), "{output}");
}
