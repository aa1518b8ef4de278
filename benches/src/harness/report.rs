//! The program of a report: it runs every case in a process of its own, and prints tables, targets
//! and plots.

use std::env;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

use crate::harness::clock::now;
use crate::harness::figures::Subject;
use crate::harness::figures::{Case, Figures};
use crate::harness::java::JavaProgram;
use crate::harness::machine;
use crate::harness::measured::{Numbers, to_line};
use crate::harness::plot::write_plots;
use crate::harness::table::measure_table;
use crate::harness::workload::Workload;

/// Lines of numbers, and the cases that they are of.
pub(crate) type Lines<S> = Vec<(Case<S>, String)>;

/// What a report measures, and how.
pub(crate) trait Report: Sync + Sized {
    type Subject: Subject;

    /// The name of the program.
    const PROGRAM: &'static str;
    /// What `--only` takes.
    const ONLY: &'static str;
    const RUNS: usize;
    /// How the files of the plots begin.
    const PLOTS: &'static str;
    /// What the sizes of its workloads are.
    const SIZE_TITLE: &'static str;
    /// The folder of the Java program that it is compared with; its name; and how it is run.
    const JAVA: [&'static str; 3];
    /// The subjects that tables compare the others with, and their names.
    const REFERENCES: &'static [(Self::Subject, &'static str)];

    /// `java` is `None` if the Java program cannot be built.
    fn new(quick: bool, java: Option<JavaProgram>) -> Self;

    /// Compares with an older build of this program, whose path was given with `--old`. `false` if
    /// this report does not.
    fn compare_with(&mut self, _program: PathBuf) -> bool {
        false
    }

    /// The machine, one fact per line.
    fn describe() -> String;

    fn workloads(&self) -> Vec<Workload<Self::Subject>>;

    /// Removes what is not named in the words after `--only`, of which there is at least one.
    fn restrict(workloads: &mut Vec<Workload<Self::Subject>>, only: &[String]);

    /// Whether this case has a process of its own here.
    fn can_run(&self, case: Case<Self::Subject>) -> bool;

    /// How many processes run at the same time. Those that mostly sleep do not disturb each other.
    fn side_by_side(&self, workload: &str, size: usize) -> usize;

    /// Runs the process of a case from its start to its end.
    fn run(&self, workload: &str, case: Case<Self::Subject>) -> io::Result<Lines<Self::Subject>>;

    /// The tables at the end: what became of the targets.
    fn targets(
        &self,
        workloads: &[Workload<Self::Subject>],
        figures: &Figures<Self::Subject>,
    ) -> String;

    /// What a measuring process does, by the words after `--one`. `None` if they name nothing.
    fn measure(words: &[&str]) -> Option<Numbers>;
}

/// This program, as a process that measures by these words.
pub(crate) fn measuring_process(words: &[String]) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--one").args(words);
    Ok(command)
}

/// The program. It prints the report, or measures one case if it is started with `--one`.
pub(crate) fn main<R: Report>() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    main_with::<R>(&arguments)
}

/// The program with these arguments.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a report")]
pub(crate) fn main_with<R: Report>(arguments: &[String]) -> io::Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--one", words @ ..] = &words[..] {
        let Some(numbers) = R::measure(words) else {
            eprintln!("there is no such workload or subject: {}", words.join(" "));
            return Ok(ExitCode::FAILURE);
        };
        println!("{}", to_line(numbers));
        return Ok(ExitCode::SUCCESS);
    }
    let (mut quick, mut only, mut runs, mut old) = (false, Vec::new(), None, None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word {
            "--quick" => quick = true,
            "--only" => only.extend(words.next().map(str::to_owned)),
            "--runs" => runs = words.next().and_then(|runs| runs.parse().ok()),
            "--old" => old = words.next().map(PathBuf::from),
            _ => return Ok(refuse::<R>(word)),
        }
    }
    let java = JavaProgram::build(R::JAVA[0]);
    let missing = java.as_ref().err().cloned();
    let mut program = R::new(quick, java.ok());
    if let Some(old) = old
        && !program.compare_with(old)
    {
        return Ok(refuse::<R>("--old"));
    }
    let text = report(&program, missing, quick, &only, runs, |line| eprintln!("{line}"))?;
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "it is a report")]
fn refuse<R: Report>(word: &str) -> ExitCode {
    let usage = format!("{} [--quick] [--runs N] [--only {}]...", R::PROGRAM, R::ONLY);
    eprintln!("unknown: {word}; {usage}");
    ExitCode::FAILURE
}

fn report<R: Report>(
    report: &R,
    java_missing: Option<String>,
    quick: bool,
    only: &[String],
    runs: Option<usize>,
    progress: impl Fn(&str),
) -> io::Result<String> {
    let runs = runs.unwrap_or(if quick { 1 } else { R::RUNS });
    let [_, peer, settings] = R::JAVA;
    let mut text = R::describe();
    // Writing to a string does not fail, here and below.
    match java_missing {
        None => writeln!(text, "{peer}: from its published jar, {settings}").ok(),
        Some(reason) => writeln!(text, "{peer}: not measured: {reason}").ok(),
    };
    writeln!(text, "load before: {}", machine::load()).ok();
    writeln!(text, "runs of each, in turn: {runs}; figures are medians\n").ok();

    let mut workloads = report.workloads();
    if !only.is_empty() {
        R::restrict(&mut workloads, only);
    }
    let (mut figures, mut failures) = (Figures::new(), Vec::new());
    for workload in &workloads {
        let start = now();
        run(report, workload, runs, &mut figures, &mut failures);
        progress(&format!("{}: measured in {:.0?}", workload.name, now() - start));
    }
    for workload in &workloads {
        for measure in &workload.measures {
            let table = measure_table(workload, measure, &figures, R::REFERENCES, R::SIZE_TITLE);
            if let Some(table) = table {
                writeln!(text, "{table}").ok();
            }
        }
    }
    writeln!(text, "{}", report.targets(&workloads, &figures)).ok();
    for failure in failures {
        writeln!(text, "failed: {failure}").ok();
    }
    // A quick run is not exact enough to be shown.
    if !quick {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plots");
        write_plots(&folder, R::PLOTS, R::SIZE_TITLE, &workloads, &figures)?;
    }
    Ok(text)
}

/// Splits what a process measured of itself and of its floor, whose words begin with `floor-`.
pub(crate) fn split_floor<S: Subject>(line: &str, case: Case<S>, floor: S) -> Lines<S> {
    let (words, own): (Vec<&str>, Vec<&str>) =
        line.split_whitespace().partition(|word| word.starts_with("floor-"));
    let words: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix("floor-")).collect();
    vec![(case, own.join(" ")), (Case { subject: floor, ..case }, words.join(" "))]
}

/// Runs all cases of a workload `times`, and collects what failed.
fn run<R: Report>(
    report: &R,
    workload: &Workload<R::Subject>,
    times: usize,
    figures: &mut Figures<R::Subject>,
    failures: &mut Vec<String>,
) {
    for &size in &workload.sizes {
        let mut cases: Vec<_> =
            workload.subjects.iter().map(|&subject| Case { subject, size }).collect();
        cases.retain(|case| report.can_run(*case));
        let mut order = Vec::new();
        for _ in 0..times {
            order.extend_from_slice(&cases);
            // Back and forth, so that none always follows the slowest.
            cases.reverse();
        }
        let side_by_side = report.side_by_side(workload.name, size).clamp(1, order.len().max(1));
        for group in order.chunks(side_by_side) {
            let outcomes = run_side_by_side(report, workload.name, group);
            for (case, outcome) in group.iter().zip(outcomes) {
                match outcome {
                    Ok(lines) => {
                        for (case, line) in lines {
                            figures.add(case, workload.name, &line);
                        }
                    }
                    Err(error) => {
                        let name = case.subject.name();
                        failures.push(format!("{}, {name}, size {size}: {error}", workload.name));
                    }
                }
            }
        }
    }
}

fn run_side_by_side<R: Report>(
    report: &R,
    workload: &str,
    cases: &[Case<R::Subject>],
) -> Vec<io::Result<Lines<R::Subject>>> {
    thread::scope(|scope| {
        let start = |&case| scope.spawn(move || report.run(workload, case));
        let started: Vec<_> = cases.iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<Lines<R::Subject>>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
        };
        started.into_iter().map(join).collect()
    })
}
