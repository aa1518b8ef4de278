//! What held locks cost: this crate's watchdog, beside a floor, peers and Redisson.

mod case;
mod flat_out;
mod floor;
mod foreground;
mod held;
mod holders;
mod jump_clock;
mod measures;
mod million;
mod renewal_rounds;
mod run;
mod server_load;
mod targets;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use wheellock_fixture::Server;

pub use renewal_rounds::RenewalRounds;

use crate::harness::figures::{Case, Figures};
use crate::harness::java::JavaProgram;
use crate::harness::machine::describe_with_server;
use crate::harness::measured::Numbers;
use crate::harness::report::{Lines, Report, main};
use crate::harness::workload::Workload;
use crate::watchdog::case::HolderKind;
use crate::watchdog::flat_out::flat_out;
use crate::watchdog::foreground::foreground;
use crate::watchdog::held::held;
use crate::watchdog::holders::{HolderConfig, Rlock, TimerTasks, TokioTasks, Unrenewed, Wheellock};
use crate::watchdog::measures::{FLAT_OUT, FOREGROUND, HELD, MILLION, QUIET, workloads};
use crate::watchdog::million::million;
use crate::watchdog::targets::target_table;

/// The program `watchdog_report`.
///
/// # Errors
///
/// If the plots cannot be written, or a process cannot be started.
pub fn watchdog_report() -> io::Result<ExitCode> {
    main::<Watchdog>()
}

struct Watchdog {
    quick: bool,
    redisson: Option<JavaProgram>,
}

impl Report for Watchdog {
    type Subject = HolderKind;

    const PROGRAM: &'static str = "watchdog_report";
    const ONLY: &'static str = "WORD";
    const RUNS: usize = 3;
    const PLOTS: &'static str = "renewal-";
    const SIZE_TITLE: &'static str = "locks held";
    const JAVA: [&'static str; 3] = ["redisson", "Redisson", "its own settings, G1, 1 GB"];
    const REFERENCES: &'static [(HolderKind, &'static str)] = &[];

    fn new(quick: bool, java: Option<JavaProgram>) -> Self {
        Self { quick, redisson: java }
    }

    fn describe() -> String {
        describe_with_server(&Server::start())
    }

    fn workloads(&self) -> Vec<Workload<HolderKind>> {
        workloads(self.quick)
    }

    /// Keeps what the words name: workloads, holders and numbers of locks.
    fn restrict(workloads: &mut Vec<Workload<HolderKind>>, only: &[String]) {
        let sizes: Vec<usize> =
            only.iter().filter_map(|word| word.replace(',', "").parse().ok()).collect();
        let is_named = |name: &str| only.iter().any(|word| word == name);
        if workloads.iter().any(|workload| is_named(workload.name)) {
            workloads.retain(|workload| is_named(workload.name));
        }
        let holders: Vec<HolderKind> =
            only.iter().filter_map(|word| HolderKind::from_word(word)).collect();
        for workload in workloads.iter_mut() {
            workload.subjects.retain(|holder| holders.is_empty() || holders.contains(holder));
            workload.sizes.retain(|size| sizes.is_empty() || sizes.contains(size));
        }
        workloads.retain(|workload| !workload.sizes.is_empty());
    }

    fn can_run(&self, case: Case<HolderKind>) -> bool {
        match case.subject {
            // The floor runs in the client's process, in turn with it.
            HolderKind::Floor => false,
            HolderKind::Redisson => self.redisson.is_some(),
            holder => case.size <= holder.most(),
        }
    }

    fn side_by_side(&self, workload: &str, size: usize) -> usize {
        if workload == HELD && size <= QUIET { usize::MAX } else { 1 }
    }

    fn run(&self, workload: &str, case: Case<HolderKind>) -> io::Result<Lines<HolderKind>> {
        self.run_case(workload, case)
    }

    fn targets(
        &self,
        _workloads: &[Workload<HolderKind>],
        figures: &Figures<HolderKind>,
    ) -> String {
        format!("### The targets, with 100,000 locks and a million\n\n{}", target_table(figures))
    }

    fn measure(words: &[&str]) -> Option<Numbers> {
        let [workload, holder, address, locks, lease, window] = words[..] else {
            return None;
        };
        let (address, locks) = (address.parse().ok()?, locks.parse().ok()?);
        let lease = Duration::from_millis(lease.parse().ok()?);
        let window = Duration::from_millis(window.parse().ok()?);
        let config = HolderConfig { address, lease };
        Some(match (workload, HolderKind::from_word(holder)?) {
            (FLAT_OUT, HolderKind::Wheellock) => flat_out(address, locks, window),
            (FOREGROUND, HolderKind::Wheellock) => foreground(address, window),
            (MILLION, HolderKind::Wheellock) => million(&config, locks, window),
            (HELD, HolderKind::Wheellock) => held::<Wheellock>(&config, locks, window),
            (HELD, HolderKind::Unrenewed) => held::<Unrenewed>(&config, locks, window),
            (HELD, HolderKind::Rlock) => held::<Rlock>(&config, locks, window),
            (HELD, HolderKind::TimerTasks) => held::<TimerTasks>(&config, locks, window),
            (HELD, HolderKind::TokioTasks) => held::<TokioTasks>(&config, locks, window),
            _ => return None,
        })
    }
}
