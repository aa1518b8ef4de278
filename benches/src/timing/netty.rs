//! Netty's timer: the Java program in the folder `netty`, built with Maven from the published jar.

use std::process::Command;

use crate::maven;

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
        Ok(Self { class_path: maven::build("netty")? })
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
