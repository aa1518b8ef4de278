//! Two builds of this library share every kind of lock, as during a rolling upgrade.
//!
//! `run-tests` names a commit and compiles `first_build.rs` with the library of that commit. Then
//! `./run-tests upgrade` runs these tests, which are ignored otherwise.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a test that fails")]

#[path = "../common/mod.rs"]
mod common;

mod sections;

use std::process::Command;
use std::{env, fs};

use wheellock::Semaphore;
use wheellock_fixture::{Server, TestProcess};

use crate::common::LIMIT;
use crate::sections::{Program, TERMS, THREADS, TIMES, TURNS};

/// A test for each kind, with how many turns both programs take together. Sections under a permit
/// take none, as they are not alone.
macro_rules! kinds {
    ($($kind:ident: $turns:expr;)+) => {
        $(#[test]
        #[ignore = "needs an earlier build: ./run-tests --all compiles it"]
        fn $kind() {
            share_the_lock(stringify!($kind), $turns);
        })+
    };
}

const ALL: usize = 2 * THREADS * TIMES;

kinds! {
    lock: ALL;
    non_reentrant: ALL;
    fenced: ALL;
    spin: ALL;
    simple: ALL;
    fair: ALL;
    non_reentrant_fair: ALL;
    owner: ALL;
    read_write: ALL / 4;
    multi: ALL;
    red: ALL;
    semaphore: 0;
    permits: 0;
    leader: 2 * THREADS * TERMS;
    job: TIMES;
}

fn share_the_lock(kind: &str, expected_turns: usize) {
    let first_build = env::var("FIRST_BUILD").unwrap_or_else(|_| {
        panic!("FIRST_BUILD does not say where the earlier program is: ./run-tests upgrade")
    });
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let folder = env::temp_dir().join(format!("wheellock-upgrade-{}-{kind}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();

    let mut command = Command::new(&first_build);
    command.arg(&folder).arg(kind).args(&urls);
    let mut process = TestProcess::spawn(&mut command);
    Program { urls, folder: folder.clone(), side: 't', under_permit }.run(kind);
    let code = process.wait_for_exit(LIMIT * 2);
    assert_eq!(code, 0, "{}", process.output());

    let turns = fs::read(folder.join(TURNS)).unwrap_or_default();
    assert_eq!(turns.len(), expected_turns, "{}", String::from_utf8_lossy(&turns));
    fs::remove_dir_all(&folder).unwrap();
}

fn under_permit(semaphore: &Semaphore, section: &mut dyn FnMut()) {
    let guard = semaphore.acquire(1).unwrap();
    section();
    guard.release().unwrap();
}
