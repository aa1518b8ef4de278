//! Many threads: this crate beside raw connections, an older build of itself and Redisson.

mod measures;
mod relay;
mod run;
mod subject;
mod targets;
mod team;
mod works;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use wheellock_fixture::Server;

pub use works::ManyThreads;

use crate::harness::figures::{Case, Figures};
use crate::harness::java::JavaProgram;
use crate::harness::machine::describe_with_server;
use crate::harness::measured::Numbers;
use crate::harness::report::{Lines, Report, main_with};
use crate::harness::workload::Workload;
use crate::lock::threads::measures::{HASTY, HOT, LINE, NAMES, PINNED, UNPINNED, workloads};
use crate::lock::threads::subject::ClientKind;
use crate::lock::threads::targets::target_table;
use crate::lock::threads::team::Times;
use crate::lock::threads::works::{beside_hasty, line, one_name, one_thread, own_names};

/// The program `lock_report threads`, with the arguments after that word; or a measuring process
/// of it.
///
/// # Errors
///
/// If the plots cannot be written, or a process cannot be started.
pub fn threads_report(arguments: &[String]) -> io::Result<ExitCode> {
    main_with::<Threads>(arguments)
}

struct Threads {
    quick: bool,
    redisson: Option<JavaProgram>,
    /// The program of an older build.
    old: Option<PathBuf>,
}

impl Report for Threads {
    type Subject = ClientKind;

    const PROGRAM: &'static str = "lock_report threads [--old PROGRAM]";
    const ONLY: &'static str = "WORD";
    const RUNS: usize = 5;
    const PLOTS: &'static str = "threads-";
    const SIZE_TITLE: &'static str = "threads";
    const JAVA: [&'static str; 3] = ["redisson", "Redisson", "its own settings, G1, 512 MB"];
    const REFERENCES: &'static [(ClientKind, &'static str)] =
        &[(ClientKind::Raw, "raw"), (ClientKind::Old, "before")];

    fn new(quick: bool, java: Option<JavaProgram>) -> Self {
        Self { quick, redisson: java, old: None }
    }

    fn compare_with(&mut self, program: PathBuf) -> bool {
        self.old = Some(program);
        true
    }

    fn describe() -> String {
        describe_with_server(&Server::start())
    }

    fn workloads(&self) -> Vec<Workload<ClientKind>> {
        workloads(self.quick)
    }

    /// Keeps what the words name: workloads, subjects and numbers of threads.
    fn restrict(workloads: &mut Vec<Workload<ClientKind>>, only: &[String]) {
        let sizes: Vec<usize> =
            only.iter().filter_map(|word| word.replace(',', "").parse().ok()).collect();
        let is_named = |name: &str| only.iter().any(|word| word == name);
        if workloads.iter().any(|workload| is_named(workload.name)) {
            workloads.retain(|workload| is_named(workload.name));
        }
        let kinds: Vec<ClientKind> =
            only.iter().filter_map(|word| ClientKind::from_word(word)).collect();
        for workload in workloads.iter_mut() {
            workload.subjects.retain(|kind| kinds.is_empty() || kinds.contains(kind));
            workload.sizes.retain(|size| sizes.is_empty() || sizes.contains(size));
        }
        workloads.retain(|workload| !workload.sizes.is_empty());
    }

    fn can_run(&self, case: Case<ClientKind>) -> bool {
        match case.subject {
            ClientKind::Redisson => self.redisson.is_some(),
            ClientKind::Old => self.old.is_some(),
            // With one thread the floor runs in the client's process, in turn with it.
            ClientKind::Raw | ClientKind::Batch => case.size > 0,
            ClientKind::Wheellock => true,
        }
    }

    fn side_by_side(&self, _workload: &str, _size: usize) -> usize {
        1
    }

    fn run(&self, workload: &str, case: Case<ClientKind>) -> io::Result<Lines<ClientKind>> {
        self.run_case(workload, case)
    }

    fn targets(&self, workloads: &[Workload<ClientKind>], figures: &Figures<ClientKind>) -> String {
        format!("### The targets\n\n{}", target_table(workloads, figures))
    }

    fn measure(words: &[&str]) -> Option<Numbers> {
        let [workload, kind, address, threads, section, settle, window] = words[..] else {
            return None;
        };
        let (address, threads) = (address.parse().ok()?, threads.parse().ok()?);
        let section = Duration::from_micros(section.parse().ok()?);
        let millis = |word: &str| word.parse().ok().map(Duration::from_millis);
        let times = Times { settle: millis(settle)?, window: millis(window)? };
        let kind = ClientKind::from_word(kind)?;
        match (workload, kind) {
            (NAMES, kind) => own_names(kind, address, threads, section, times),
            (HASTY, ClientKind::Wheellock) => Some(beside_hasty(address, threads, times)),
            (PINNED | UNPINNED, ClientKind::Wheellock) => Some(one_thread(address, times)),
            (HOT, ClientKind::Wheellock) => Some(one_name(address, threads, section, times)),
            (LINE, ClientKind::Wheellock) => Some(line(address, threads, times)),
            _ => None,
        }
    }
}
