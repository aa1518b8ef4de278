//! Registers under fenced locks, judged by an outside checker.
//!
//! Processes read and set registers on a Redis server of their own. Each register has a fenced lock
//! on another server. A compare-and-set is a read and a later plain write under one hold, so it is
//! atomic only if no other holder writes between them, or if the register refuses what an older
//! holder writes. What each process has asked and been answered is recorded, and the checker of
//! `todc-utils` says whether the histories are linearizable.
//!
//! Meanwhile processes are stopped and killed, connections cut, requests held back, replies lost,
//! and the server of the locks is paused and restarted without its data (`faults`). The order
//! follows from a seed, which is written to standard error and can be given again with
//! `REGISTER_SEED`. How the processes interleave is up to the machine. The test lasts 20 seconds,
//! or as many as `REGISTER_SECONDS` says.
//!
//! A history that is not linearizable is written to a file. `REGISTER_HISTORIES=FOLDER` writes
//! all of them. Knossos reads them (`history`), and so does `porcupine/main.go`.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]
#![expect(clippy::expect_used, clippy::panic, reason = "a helper that fails is a test that fails")]
#![expect(clippy::print_stdout, reason = "a child tells by printing how far it is")]

mod checker;
mod faults;
mod history;
mod recorder;
mod register;
mod times;
mod worker;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use fastrand::Rng;
use wheellock_fixture::TestProcess;

use checker::is_linearizable;
use faults::{FaultyServers, Stage};
use history::{Event, Kind};
use register::Tokens;
use times::{LIMIT, now};
use worker::{HAS_READ, PAUSED, ROLE, WORKER, Worker};

const PROCESSES: usize = 4;

/// So that five or six threads want one lock at a time.
const REGISTERS_IN_USE: usize = 3;

#[test]
fn child_role() {
    // Only in a process that a test has started is this more than an empty test.
    match env::var(ROLE).as_deref() {
        Ok(WORKER) => worker::work(),
        Ok(PAUSED) => worker::be_paused(),
        _ => {}
    }
}

#[test]
fn histories_under_faults_are_linearizable() {
    let seed = number("REGISTER_SEED").unwrap_or_else(|| fastrand::u64(..));
    let length = number("REGISTER_SECONDS").unwrap_or(20);
    say(&format!("REGISTER_SEED={seed} REGISTER_SECONDS={length}\n"));
    let start = now();
    let setup = FaultyServers::start(REGISTERS_IN_USE);
    let mut stage = Stage::start(&setup, PROCESSES, seed);
    let faults = stage.inject_faults(start + Duration::from_secs(length));
    setup.recorder.wait_for_progress();
    setup.recorder.close();
    for process in &mut stage.processes {
        let code = process.wait_for_exit(LIMIT);
        assert_eq!(code, 0, "seed {seed}: {}", process.output());
    }

    let histories = setup.recorder.histories();
    let end = now();
    let wrong: Vec<_> = histories.iter().filter(|(_, history)| !is_linearizable(history)).collect();
    let checked = now() - end;
    let sets = |kind| histories.values().flatten().filter(|event| event.is_set(kind)).count();
    let figures = format!(
        "{} compare-and-sets of {} registers in {:?} with {faults} faults: {} done, {} refused, {} \
         without a reply; checked in {checked:?}\n",
        sets(Kind::Invoke),
        histories.len(),
        end - start,
        sets(Kind::Ok),
        sets(Kind::Fail),
        sets(Kind::Info),
    );
    say(&figures);
    if let Ok(folder) = env::var("REGISTER_HISTORIES") {
        for (name, history) in &histories {
            write(Path::new(&folder), name, history);
        }
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("register-{seed}"));
    let files: Vec<_> = wrong.iter().map(|(name, history)| write(&folder, name, history)).collect();
    assert!(files.is_empty(), "seed {seed}: not linearizable: {files:#?}");
}

/// The history of Kleppmann's pause. A process is stopped between its read and its write, for
/// longer than its lease. Meanwhile another one sets the register under the next hold.
fn history_of_a_paused_holder(tokens: Tokens) -> Vec<Event> {
    let setup = FaultyServers::start(1);
    let addresses = setup.addresses(tokens, LIMIT);
    let (mut process, mut input, lines) =
        TestProcess::spawn_for_talk(&mut addresses.command(PAUSED));
    while lines.recv_timeout(LIMIT).expect("the process has read") != HAS_READ {}
    process.pause();

    let client = addresses.client();
    let mut other = Worker::new(&addresses, Rng::new());
    let name = other.record.next().unwrap();
    let guard = client.fenced_lock(&name).lock().unwrap();
    let value = other.read(&name, &guard).unwrap();
    other.set(&name, &guard, value).unwrap();

    input.write_all(b"go on\n").unwrap();
    process.resume();
    assert_eq!(process.wait_for_exit(LIMIT), 0, "{}", process.output());
    setup.recorder.histories().into_values().next().unwrap()
}

#[test]
fn checker_finds_write_of_paused_holder_if_tokens_are_ignored() {
    let history = history_of_a_paused_holder(Tokens::Ignored);
    assert!(!is_linearizable(&history), "{}", history::text(&history));
}

#[test]
fn the_write_of_a_paused_holder_is_refused_by_its_token() {
    let history = history_of_a_paused_holder(Tokens::Checked);
    assert_eq!(history.iter().filter(|event| event.is_set(Kind::Fail)).count(), 1);
    assert!(is_linearizable(&history), "{}", history::text(&history));
}

#[test]
fn recorded_histories_are_judged_as_other_checkers_judge_them() {
    let judged = |text| is_linearizable(&history::parse(text));
    assert!(judged(include_str!("histories/tokens_checked.edn")));
    assert!(!judged(include_str!("histories/tokens_ignored.edn")));
}

fn write(folder: &Path, name: &str, history: &[Event]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join(format!("{name}.edn"));
    fs::write(&path, history::text(history) + "\n").unwrap();
    path
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Writes to the standard error, past the harness, which would show it with a failure only.
fn say(text: &str) {
    io::stderr().write_all(text.as_bytes()).unwrap();
}
