//! Tests that need a process of their own: they fork it, count its threads, or set global state.
//!
//! Each test runs itself again in a child process, where it is the only test
//! ([`ran_in_a_child`]).

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(target_os = "linux", not(feature = "tracing")))]
mod callbacks_thread;
mod cluster_threads;
mod fork_cache;
mod fork_clones;
mod fork_cohort;
mod fork_guards;
mod fork_races;
mod hostile_replies;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod metrics_foreign;
#[cfg(feature = "metrics")]
mod metrics_panic;
#[cfg(target_os = "linux")]
mod red_threads;
#[cfg(feature = "tracing")]
mod secrets_in_events;
#[cfg(feature = "tracing")]
mod tracing;
#[cfg(target_os = "linux")]
mod wakers_thread;

use std::any;
use std::env;
use std::process::Command;
use std::time::Duration;

use wheellock_fixture::TestProcess;

/// Names the test that a child process runs.
const TEST: &str = "WHEELLOCK_TEST_ALONE";

/// Longer than any of these tests takes.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a test in a child process and returns true, or returns false in that child process.
///
/// # Panics
///
/// When the test fails in the child process, or does not run there.
fn ran_in_a_child<F: Fn()>(_test: F) -> bool {
    // The harness knows the test by its path without this program's name.
    let path = any::type_name::<F>();
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    if env::var(TEST).is_ok_and(|alone| alone == name) {
        return false;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    // With one test thread the harness would run the test on the main thread.
    command.args(["--exact", name, "--nocapture", "--test-threads=2"]).env(TEST, name);
    let mut child = TestProcess::spawn(&mut command);
    child.wait_for_line("test result: ok. 1 passed", LIMIT);
    assert_eq!(child.wait_for_exit(LIMIT), 0, "{name}:\n{}", child.output());
    true
}
