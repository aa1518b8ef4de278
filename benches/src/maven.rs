//! A Java program in a folder of its own, built with Maven from published jars.

use std::path::Path;
use std::process::{Command, Stdio};

/// Builds the program in a folder beside `src` and answers the class path that it runs with.
///
/// # Errors
///
/// Why it is not there, in words for the report.
pub(crate) fn build(folder: &str) -> Result<String, String> {
    for (program, argument) in [("java", "-version"), ("mvn", "-version")] {
        if !succeeds(Command::new(program).arg(argument)) {
            return Err(format!("there is no `{program}` on the path"));
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    // Beside the folder of the profile that this program was built into.
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(2).unwrap_or(Path::new("target")).join(folder);
    let built = Command::new("mvn")
        .args(["-q", "-f"])
        .arg(source.join("pom.xml"))
        .arg(format!("-DbuildDirectory={}", target.display()))
        .args(["package", "dependency:copy-dependencies"])
        .output();
    match built {
        Ok(output) if output.status.success() => Ok(format!("{}/*", target.display())),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            Err(format!("Maven does not build it: {}", said.lines().next().unwrap_or("?")))
        }
        Err(error) => Err(format!("Maven does not run: {error}")),
    }
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
