//! What this process has used so far: processor time, memory, and how often its threads have slept.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::harness::clock::{now, sleep};

/// The processor time of all threads, in nanoseconds.
pub(crate) fn processor_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// The processor time of the calling thread, in nanoseconds.
pub(crate) fn thread_processor_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The processor time of all threads since it was `before`.
pub(crate) fn processor_time_since(before: Duration) -> Duration {
    processor_time().saturating_sub(before)
}

/// How much of a core this process uses while `work` runs, in percent.
pub(crate) fn percent_during(work: impl FnOnce()) -> f64 {
    let (start, before) = (now(), processor_time());
    work();
    let used = processor_time_since(before);
    100.0 * used.as_secs_f64() / (now() - start).as_secs_f64()
}

/// How much of a core this process uses by itself for `window`, in percent.
pub(crate) fn percent_of(window: Duration) -> f64 {
    percent_during(|| sleep(window))
}

/// The resident memory, in bytes.
pub(crate) fn resident_bytes() -> f64 {
    number("/proc/self/status", "VmRSS") * 1024.0
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
        .map(|task| number(task.path().join("status"), "voluntary_ctxt_switches"))
        .sum()
}

/// The number of threads.
pub(crate) fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("the system has /proc").count()
}

/// Waits until no thread of this process runs, for a second at most.
pub(crate) fn wait_until_quiet() {
    let mut quiet = 0;
    for _ in 0..200 {
        let before = processor_time();
        sleep(Duration::from_millis(5));
        quiet =
            if processor_time_since(before) < Duration::from_micros(200) { quiet + 1 } else { 0 };
        if quiet == 2 {
            break;
        }
    }
}

/// The value of the first line `name: value` in a file.
pub(crate) fn field(path: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn number(path: impl AsRef<Path>, name: &str) -> f64 {
    field(path, name)
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(f64::NAN)
}
