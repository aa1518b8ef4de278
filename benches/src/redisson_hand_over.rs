//! A lock handed from one Redisson client to a waiter of another, in one Java process.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use wheellock_fixture::Server;

use crate::contender::Contender;
use crate::maven;

/// The peer.
pub const REDISSON: &str = "Redisson 3.52";

/// The Java process. It ends with its input.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Redisson, warmed up.
///
/// # Errors
///
/// Why it is not there, in words for the report.
pub fn redisson_hand_over(server: &Server) -> Result<Contender, String> {
    let class_path = maven::build("redisson")?;
    let mut child = Command::new("java")
        .args(["-Xmx512m", "-cp", &class_path, "RedissonHandOver"])
        .arg(server.address().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("Java does not run: {error}"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("Java has no input or output".to_owned());
    };
    let mut program = Program { child, input, output: BufReader::new(output).lines() };
    program.wait_for_ready()?;
    Ok(Contender::new(REDISSON, move || program.sample()))
}

impl Program {
    fn wait_for_ready(&mut self) -> Result<(), String> {
        while let Some(Ok(line)) = self.output.next() {
            if line == "ready" {
                return Ok(());
            }
        }
        Err("the Java program ended before it was ready".to_owned())
    }

    fn sample(&mut self) -> Duration {
        writeln!(self.input, "once").expect("the program reads");
        let line = self.output.next().expect("it answers").expect("it answers");
        Duration::from_nanos(line.parse().expect("it answers a number"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing is left of it that would matter.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
