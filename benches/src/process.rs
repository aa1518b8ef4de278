//! What this process has taken so far: processor time, memory, and how often its threads have slept.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::clock::pause;

/// The processor time of all threads, to the nanosecond.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The processor time of all threads since it was `before`.
pub(crate) fn processor_time_since(before: Duration) -> Duration {
    processor_time().saturating_sub(before)
}

/// The memory that is resident, in bytes.
pub(crate) fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "VmRSS:") * 1024.0
}

/// How often threads have gone to sleep: those with this name, or all but the main one.
pub(crate) fn sleeps(thread_name: Option<&str>) -> f64 {
    let main = std::process::id().to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("the system has /proc");
    tasks
        .flatten()
        .filter(|task| match thread_name {
            Some(name) => fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|comm| comm.trim_end() == name),
            None => task.file_name().to_string_lossy() != main,
        })
        .map(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            field(&status, "voluntary_ctxt_switches:")
        })
        .sum()
}

/// How many threads there are.
pub(crate) fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("the system has /proc").count()
}

/// Waits until no thread of this process works any more, for a second at most.
pub(crate) fn wait_until_quiet() {
    let mut quiet = 0;
    for _ in 0..200 {
        let before = processor_time();
        pause(Duration::from_millis(5));
        quiet =
            if processor_time_since(before) < Duration::from_micros(200) { quiet + 1 } else { 0 };
        if quiet == 2 {
            break;
        }
    }
}

fn field(status: &str, name: &str) -> f64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|value| value.split_whitespace().next())
        .and_then(|value| value.parse().ok())
        .unwrap_or(f64::NAN)
}
