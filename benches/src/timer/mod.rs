//! What a timeout costs: the timers of hashed-wheel, floors, Netty's timer and other peers, under
//! the same workloads.

mod bench_timer;
mod case;
mod crates;
mod floor_ratios;
mod heap;
mod measures;
mod own;
mod random;
mod record;
mod stoppable;
mod targets;
mod tokio_timers;
mod workloads;

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

pub use stoppable::{
    ClockAndLock, CrossbeamAfter, OrderedMap, StoppableBatch, StoppableBoxed, StoppableTimer,
};

use crate::harness::child::Child;
use crate::harness::figures::{Case, Figures};
use crate::harness::java::JavaProgram;
use crate::harness::machine;
use crate::harness::measured::Numbers;
use crate::harness::report::{Lines, Report, main, measuring_process};
use crate::harness::workload::Workload;
use crate::timer::case::{NETTY_FEW, NETTY_MANY, SizedTimer, TimerKind};
use crate::timer::floor_ratios::floor_ratio_table;
use crate::timer::measures::workloads;
use crate::timer::targets::target_table;

/// No measurement takes this long.
const LIMIT: Duration = Duration::from_secs(100);

/// The program `timer_report`.
///
/// # Errors
///
/// If the plots cannot be written, or a process cannot be started.
pub fn timer_report() -> io::Result<ExitCode> {
    main::<Timers>()
}

/// The path of this program with another allocator, as a program cannot change its allocator while
/// it runs. It is beside this one if it was built.
fn with_jemalloc() -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("timer_report_jemalloc"))
}

struct Timers {
    quick: bool,
    netty: Option<JavaProgram>,
}

impl Report for Timers {
    type Subject = SizedTimer;

    const PROGRAM: &'static str = "timer_report";
    const ONLY: &'static str = "ROW";
    const RUNS: usize = 5;
    const PLOTS: &'static str = "";
    const SIZE_TITLE: &'static str = "";
    const JAVA: [&'static str; 3] = ["netty", "Netty", "tick of 1 ms, G1, 3 GB"];
    const REFERENCES: &'static [(SizedTimer, &'static str)] =
        &[(NETTY_FEW, "Netty 512"), (NETTY_MANY, "Netty 65,536")];

    fn new(quick: bool, java: Option<JavaProgram>) -> Self {
        Self { quick, netty: java }
    }

    fn describe() -> String {
        machine::describe()
    }

    fn workloads(&self) -> Vec<Workload<SizedTimer>> {
        workloads(self.quick)
    }

    /// By the name of the workload or by the number of the row, with or without its letter.
    fn restrict(workloads: &mut Vec<Workload<SizedTimer>>, only: &[String]) {
        let is_named = |word: &String, workload: &Workload<SizedTimer>| {
            let has_row =
                |row: &str| row.trim_end_matches(char::is_alphabetic) == word || row == word;
            workload.name == word || workload.measures.iter().any(|measure| has_row(measure.row))
        };
        workloads.retain(|workload| only.iter().any(|word| is_named(word, workload)));
    }

    fn can_run(&self, case: Case<SizedTimer>) -> bool {
        match case.subject.kind {
            TimerKind::Netty => self.netty.is_some(),
            TimerKind::BoxedJemalloc => with_jemalloc().is_ok_and(|program| program.exists()),
            _ => true,
        }
    }

    fn side_by_side(&self, workload: &str, _size: usize) -> usize {
        match workload {
            "rounds" | "rearm" => 2,
            "hold" => 3,
            "idle" => usize::MAX,
            _ => 1,
        }
    }

    fn run(&self, workload: &str, case: Case<SizedTimer>) -> io::Result<Lines<SizedTimer>> {
        let SizedTimer { kind, buckets } = case.subject;
        let (buckets, window) = (buckets.to_string(), self.window(workload));
        let window = window.as_secs_f64().to_string();
        let mut command = match &self.netty {
            Some(netty) if kind == TimerKind::Netty => {
                // An idle timer needs little memory, and many of them run side by side.
                let heap = if workload == "idle" { "128m" } else { "3g" };
                let mut command = netty.command("NettyReport", heap);
                command.args([workload, &buckets, &window]);
                command
            }
            _ if kind == TimerKind::BoxedJemalloc => {
                let mut command = Command::new(with_jemalloc()?);
                command.args(["--one", workload, kind.word(), &buckets, &window]);
                command
            }
            _ => measuring_process(&[workload, kind.word(), &buckets, &window].map(str::to_owned))?,
        };
        Ok(vec![(case, Child::start(&mut command)?.line(LIMIT)?)])
    }

    fn targets(&self, workloads: &[Workload<SizedTimer>], figures: &Figures<SizedTimer>) -> String {
        format!(
            "### The targets\n\n{}\n### How close to the floor\n\n{}",
            target_table(workloads, figures),
            floor_ratio_table(figures)
        )
    }

    fn measure(words: &[&str]) -> Option<Numbers> {
        let [workload, kind, buckets, window] = words[..] else {
            return None;
        };
        let timer = SizedTimer::new(TimerKind::from_word(kind)?, buckets.parse().ok()?);
        timer.measure(workload, Duration::try_from_secs_f64(window.parse().ok()?).ok()?)
    }
}

impl Timers {
    /// How long a workload is measured, if it is measured for a time.
    fn window(&self, workload: &str) -> Duration {
        let window = Duration::from_millis(if self.quick { 1200 } else { 3000 });
        match workload {
            "rounds" => window * 2 / 3,
            "rearm" | "hold" => window,
            "idle" => Duration::from_secs(20),
            _ => Duration::ZERO,
        }
    }
}
