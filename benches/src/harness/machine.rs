//! The machine and the server that figures were measured on.

use std::fs;
use std::process::Command;

use wheellock_fixture::Server;

use crate::harness::process::field;

/// The processor, the system, the server and the cores that they may use, one line each.
#[must_use]
pub fn describe_with_server(server: &Server) -> String {
    let info = server.command(&["INFO", "server"]).text();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    format!(
        "{}server: {}\ncores allowed: benchmark {}, server {}\n",
        describe(),
        version.unwrap_or("unknown"),
        allowed_cores("self"),
        allowed_cores(&server.process_id().to_string()),
    )
}

/// The processor and the system, one line each.
pub(crate) fn describe() -> String {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let cores = fs::read_to_string("/proc/cpuinfo")
        .map_or(0, |text| text.lines().filter(|line| line.starts_with("processor")).count());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("processor: {cpu}, {cores} cores\nkernel: {} {}\n", std::env::consts::OS, kernel.trim())
}

/// The load of the machine, as the system states it.
pub(crate) fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Keeps all threads of the server on one core, with the system's `taskset`.
pub fn pin(server: &Server, core: &str) {
    let pinned = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", core, &server.process_id().to_string()])
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(pinned, "taskset cannot pin the server to core {core}");
}

fn allowed_cores(process: &str) -> String {
    field(format!("/proc/{process}/status"), "Cpus_allowed_list")
        .unwrap_or_else(|| "unknown".to_owned())
}
