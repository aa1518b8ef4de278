//! The script of the example `everyday`.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use wheellock_fixture::{Server, TestProcess};

use crate::support::{PATIENCE, ended};

/// The script, with this `wheellock` on its path. Its command takes so many seconds.
fn script(server: &Server, seconds: &str) -> TestProcess {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/examples/everyday/command_line.sh");
    let folder = Path::new(env!("CARGO_BIN_EXE_wheellock")).parent().unwrap();
    let others = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&others)));
    let mut command = Command::new(fs::canonicalize(script).unwrap());
    command.arg(seconds).env("PATH", path.unwrap()).env("REDIS_URL", server.url());
    TestProcess::spawn(&mut command)
}

#[test]
fn the_everyday_script_runs_once_at_a_time() {
    let server = Server::start();
    let mut first = script(&server, "1000");
    first.wait_for_line("report: token ", PATIENCE);
    let (code, output) = ended(script(&server, "0"));
    assert!(code == 0 && output.contains("report: runs elsewhere"), "{code}: {output}");
    // Found at the next renewal.
    server.command(&["DEL", "everyday:report"]);
    let (code, output) = ended(first);
    assert!(code == 0 && output.contains("report: the lock was lost"), "{code}: {output}");
    let (code, output) = ended(script(&server, "0"));
    assert!(code == 0 && output.contains("report: done"), "{code}: {output}");
}
