//! Netty's timer: the Java program in the folder `netty`, built with Maven from the published jar.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The built program.
#[derive(Debug)]
pub(crate) struct Netty {
    class_path: String,
}

impl Netty {
    /// Builds it.
    ///
    /// # Errors
    ///
    /// Why it is not there, in words for the report.
    pub(crate) fn build() -> Result<Self, String> {
        for (program, argument) in [("java", "-version"), ("mvn", "-version")] {
            if !succeeds(Command::new(program).arg(argument)) {
                return Err(format!("there is no `{program}` on the path"));
            }
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("netty");
        let target = target_folder();
        let built = Command::new("mvn")
            .args(["-q", "-f"])
            .arg(source.join("pom.xml"))
            .arg(format!("-DbuildDirectory={}", target.display()))
            .args(["package", "dependency:copy-dependencies"])
            .output();
        match built {
            Ok(output) if output.status.success() => {
                Ok(Self { class_path: format!("{}/*", target.display()) })
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                Err(format!("Maven does not build it: {}", said.lines().next().unwrap_or("?")))
            }
            Err(error) => Err(format!("Maven does not run: {error}")),
        }
    }

    /// A process that measures one workload.
    pub(crate) fn command(&self, workload: &str, buckets: usize, window: &str) -> Command {
        let mut command = Command::new("java");
        // What does nothing needs no room, and many of them run side by side.
        let heap = if workload == "idle" { "128m" } else { "3g" };
        command
            .arg(format!("-Xms{heap}"))
            .arg(format!("-Xmx{heap}"))
            .args(["-XX:+UseG1GC", "-cp", &self.class_path, "NettyReport", workload])
            .arg(buckets.to_string())
            .arg(window);
        command
    }
}

/// Beside the folder of the profile that this program was built into.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(2).unwrap_or(Path::new("target"));
    target.join("netty")
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
