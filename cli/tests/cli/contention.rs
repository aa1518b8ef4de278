//! Many of them at once, and many in a row.

use std::env;
use std::fs;
use std::path::PathBuf;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{NAME, PATIENCE, SUCCESS, run, spawn};

/// A file of this test process.
fn file(name: &str) -> PathBuf {
    env::temp_dir().join(format!("wheellock-cli-{}-{name}", std::process::id()))
}

#[test]
fn of_ten_processes_one_at_a_time_runs() {
    let server = Server::start();
    let log = file("ten");
    // `mkdir` fails if the directory is there, that is, if another one is between it and `rmdir`.
    let script = "mkdir \"$0.d\" || exit 9; sleep 0.02; echo x >>\"$0\"; rmdir \"$0.d\"";
    let command = ["sh", "-c", script, log.to_str().unwrap()];
    for options in [&[][..], &["--fair"], &["--exclusive"], &["--permits", "1"]] {
        server.command(&["FLUSHALL"]);
        fs::write(&log, "").unwrap();
        let processes: Vec<TestProcess> =
            (0..10).map(|_| spawn(&server, options, &command)).collect();
        for mut process in processes {
            let code = process.wait_for_exit(PATIENCE);
            assert_eq!(code, SUCCESS, "{options:?}: {}", process.output());
        }
        assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 10, "{options:?}");
    }
    fs::remove_file(&log).unwrap();
}

#[test]
fn runs_in_a_row_leave_nothing_but_the_counter_of_tokens() {
    let server = Server::start();
    // A thousand with WHEELLOCK_RUNS=1000.
    let runs = env::var("WHEELLOCK_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(100);
    let log = file("row");
    fs::write(&log, "").unwrap();
    let script = "echo $WHEELLOCK_TOKEN >>\"$0\"";
    for _ in 0..runs {
        let mut command =
            run(&server, &["--no-wait"], &["sh", "-c", script, log.to_str().unwrap()]);
        assert!(command.status().unwrap().success(), "each finds the lock free");
    }
    let tokens: Vec<u64> =
        fs::read_to_string(&log).unwrap().lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), runs);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(server.command(&["KEYS", "*"]).texts(), [format!("redisson_lock_token:{{{NAME}}}")]);
    fs::remove_file(&log).unwrap();
}
