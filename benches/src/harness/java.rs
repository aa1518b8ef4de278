//! The Java programs in the folder `java`, built with Maven from published jars.

use std::path::Path;
use std::process::{Command, Stdio};

/// A program that is built.
#[derive(Debug)]
pub(crate) struct JavaProgram {
    class_path: String,
}

impl JavaProgram {
    /// Builds the program in a folder of `java`.
    ///
    /// # Errors
    ///
    /// Why it cannot be built, in words for the report.
    pub(crate) fn build(folder: &str) -> Result<Self, String> {
        for program in ["java", "mvn"] {
            if !succeeds(Command::new(program).arg("-version")) {
                return Err(format!("there is no `{program}` on the path"));
            }
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("java").join(folder);
        // Beside the folder of the profile that this program was built with.
        let program = std::env::current_exe().unwrap_or_default();
        let target = program.ancestors().nth(2).unwrap_or(Path::new("target")).join(folder);
        let built = Command::new("mvn")
            .args(["-q", "-f"])
            .arg(source.join("pom.xml"))
            .arg(format!("-DbuildDirectory={}", target.display()))
            // Cleaned first: jars of another version would stay on the class path.
            .args(["clean", "package", "dependency:copy-dependencies"])
            .output();
        match built {
            Ok(output) if output.status.success() => {
                Ok(Self { class_path: format!("{}/*", target.display()) })
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let first = text.lines().next().unwrap_or("no output");
                Err(format!("Maven cannot build it: {first}"))
            }
            Err(error) => Err(format!("Maven cannot be run: {error}")),
        }
    }

    /// Runs a class of it, with a heap of this size, such as `512m`.
    pub(crate) fn command(&self, class: &str, heap: &str) -> Command {
        let mut command = Command::new("java");
        command.arg(format!("-Xms{heap}")).arg(format!("-Xmx{heap}")).args([
            "-XX:+UseG1GC",
            "-cp",
            &self.class_path,
            class,
        ]);
        command
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
