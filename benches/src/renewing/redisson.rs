//! Redisson: the Java program in the folder `redisson`, built with Maven from the published jar.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::maven;

/// The built program.
#[derive(Debug)]
pub(crate) struct Redisson {
    class_path: String,
}

impl Redisson {
    /// Builds it.
    ///
    /// # Errors
    ///
    /// Why it is not there, in words for the report.
    pub(crate) fn build() -> Result<Self, String> {
        Ok(Self { class_path: maven::build("redisson")? })
    }

    /// A process that holds locks.
    pub(crate) fn command(
        &self,
        address: SocketAddr,
        held: usize,
        lease: Duration,
        window: Duration,
    ) -> Command {
        let mut command = Command::new("java");
        command
            .args(["-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", &self.class_path, "RedissonReport"])
            .arg(address.to_string())
            .arg(held.to_string())
            .arg(lease.as_millis().to_string())
            .arg(window.as_millis().to_string());
        command
    }
}
