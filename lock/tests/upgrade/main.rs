//! Two builds of this library share every kind of lock, as during a rolling upgrade.
//!
//! `run-tests` names a commit and compiles `first_build.rs` with the library of that commit. Then
//! `./run-tests upgrade` runs these tests, which are ignored otherwise.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a test that fails")]

#[path = "../common/mod.rs"]
mod common;

mod sections;

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use wheellock::Semaphore;
use wheellock_fixture::{Server, TestProcess};

use crate::common::LIMIT;
use crate::sections::{
    HAND_OVER, PERMITS, Program, SECTIONS, TERMS, THREADS, TIMES, TIMES_OF_HAND_OVERS, TURNS,
};

/// A test for each kind, with how many turns both programs take together. Sections under a permit
/// take none, as they are not alone.
macro_rules! kinds {
    ($($kind:ident: $turns:expr;)+) => {
        $(#[test]
        #[ignore = "needs an earlier build: ./run-tests --all compiles it"]
        fn $kind() {
            let shared = share(SECTIONS, stringify!($kind));
            assert_eq!(shared.turns.len(), $turns, "{}", shared.turns);
        })+
    };
}

/// A test for each kind whose waiters sleep until a message wakes them.
macro_rules! hand_overs {
    ($($kind:ident)+) => {
        mod hand_over {
            $(#[test]
            #[ignore = "needs an earlier build: ./run-tests --all compiles it"]
            fn $kind() {
                let shared = super::share(super::HAND_OVER, stringify!($kind));
                super::assert_woken_at_once(shared.times);
            })+
        }
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

hand_overs! {
    lock
    non_reentrant
    fenced
    fair
    non_reentrant_fair
    owner
    write
    multi
    semaphore
    permits
}

/// Waiters that no message reaches ask again after a second. Most are woken long before.
const AT_ONCE: Duration = Duration::from_millis(500);

fn assert_woken_at_once(mut times: Vec<Duration>) {
    times.sort();
    let median = times[times.len() / 2];
    assert!(median < AT_ONCE, "the other program was woken after {times:?}");
}

/// What both programs have done.
struct Shared {
    turns: String,
    /// How long the releases of both took to wake the other program.
    times: Vec<Duration>,
}

fn share(part: &str, kind: &str) -> Shared {
    let first_build = env::var("FIRST_BUILD").unwrap_or_else(|_| {
        panic!("FIRST_BUILD does not say where the earlier program is: ./run-tests upgrade")
    });
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let process = std::process::id();
    let folder = env::temp_dir().join(format!("wheellock-upgrade-{process}-{part}-{kind}"));
    fs::create_dir_all(&folder).unwrap();

    let mut command = Command::new(&first_build);
    command.arg(&folder).arg(part).arg(kind).args(&urls);
    let mut process = TestProcess::spawn(&mut command);
    let program =
        Program { urls, folder: folder.clone(), side: 't', under_permit, permits: PERMITS };
    program.take_part(part, kind);
    let code = process.wait_for_exit(LIMIT * 2);
    assert_eq!(code, 0, "{}", process.output());

    let read = |file| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let (turns, times) = (read(TURNS), read(TIMES_OF_HAND_OVERS));
    let times = times.lines().map(|micros| Duration::from_micros(micros.parse().unwrap()));
    let shared = Shared { turns, times: times.collect() };
    fs::remove_dir_all(&folder).unwrap();
    shared
}

fn under_permit(semaphore: &Semaphore, section: &mut dyn FnMut()) {
    let guard = semaphore.acquire(1).unwrap();
    section();
    guard.release().unwrap();
}
