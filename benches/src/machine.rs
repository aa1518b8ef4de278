//! What a figure was measured on, and how the server is kept on one core.

use std::fs;
use std::process::Command;

use wheellock_fixture::Server;

/// The processor, the system and the server, and which cores they may use, on one line each.
#[must_use]
pub fn describe(server: &Server) -> String {
    let info = server.command(&["INFO", "server"]).text();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    format!(
        "{}server: {}\ncores allowed: benchmark {}, server {}\n",
        describe_machine(),
        version.unwrap_or("unknown"),
        allowed("self"),
        allowed(&server.process_id().to_string()),
    )
}

/// The processor and the system, on one line each.
pub(crate) fn describe_machine() -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let cores = fs::read_to_string("/proc/cpuinfo")
        .map_or(0, |text| text.lines().filter(|line| line.starts_with("processor")).count());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("processor: {cpu}, {cores} cores\nkernel: {} {}\n", std::env::consts::OS, kernel.trim())
}

/// Keeps all threads of the server on one core, with the system's `taskset`.
pub fn pin(server: &Server, core: &str) {
    let pinned = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", core, &server.process_id().to_string()])
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(pinned, "taskset does not pin the server to core {core}");
}

fn allowed(process: &str) -> String {
    field(&format!("/proc/{process}/status"), "Cpus_allowed_list")
        .unwrap_or_else(|| "unknown".to_owned())
}

/// The value of the first line `name: value` in a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
