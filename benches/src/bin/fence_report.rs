//! Prints what a fenced write costs beside a plain write of the same resource, measured in turn, with
//! ratios.
//!
//! `fence_report [--quick]`; without the word each contender has a hundred rounds.

#![expect(clippy::print_stdout, reason = "it is a report")]

use std::env;
use std::io;

use wheellock_benches::{
    Contender, FenceFolder, describe_with_server, file_writes, measure_in_turn,
    postgres_transactions, postgres_updates, prepared_postgres_transactions, redis_writes,
    sqlite_transactions, table, tokens,
};
use wheellock_fixture::{Postgres, Server};

/// How many writes a round has: few where each waits for the disk.
const TO_DISK: usize = 10;
const IN_MEMORY: usize = 100;

fn main() -> io::Result<()> {
    let quick = env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 2 } else { 100 };
    let print = |title: &str, mut contenders: Vec<Contender>, samples| {
        println!("{}", table(title, &measure_in_turn(&mut contenders, rounds, samples)));
    };
    let server = Server::start();
    let folder = FenceFolder::new()?;
    println!("{}file system: {}\n", describe_with_server(&server), folder.file_system());

    if Postgres::is_installed() {
        let server = Postgres::start();
        println!("PostgreSQL: fsync on, on the file system above\n");
        print("PostgreSQL, the table", postgres_transactions(&server), TO_DISK);
        print("the same, prepared", prepared_postgres_transactions(&server), TO_DISK);
        print("PostgreSQL, the column", postgres_updates(&server), TO_DISK);
    } else {
        println!("PostgreSQL: not measured: it is not installed\n");
    }
    println!("SQLite: WAL journal, synchronous=NORMAL, so a commit does not wait for the disk\n");
    print("SQLite, the table", sqlite_transactions(&folder), IN_MEMORY);
    print("Redis", redis_writes(&server), IN_MEMORY);
    print("file of 1 KiB", file_writes(&folder), TO_DISK);
    println!("object store: not measured: a fenced put is 2 requests, a plain put is 1\n");
    print("the token", tokens(&server), IN_MEMORY);
    Ok(())
}
