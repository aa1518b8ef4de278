//! The fault matrix: every operation that the library sends meets every fault, once and for three
//! seconds.
//!
//! The table of outcomes is in the crate's documentation, in `docs/faults.md`. `WRITE_FAULTS=1`
//! writes it again. `FAULT_SEED` repeats the order and the cuts of a run. `FAULT_CELLS` runs only
//! the cells whose name contains one of its comma-separated parts. `FAULT_WORKERS` is the number of
//! threads.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::panic, reason = "the helpers of a test fail it with a message")]

#[path = "../common/mod.rs"]
mod common;

mod cell;
mod cell_run;
mod commands;
mod faults;
mod holding;
mod injected_fault;
mod lateness;
mod operations;
mod place;
mod sends;
mod servers;
mod table;

use std::collections::BTreeSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;

use cell::{Cell, Outcome};
use faults::{Cut, Fault, Times};
use place::FreePlaces;
use table::{Page, Table};

/// No cell takes as long as this.
const STUCK: Duration = Duration::from_secs(120);

/// Most of their time is waiting. With more of them two processors are so busy that a server that
/// starts again may take longer than a call.
const WORKERS: usize = 32;

#[test]
fn every_operation_meets_every_fault_and_ends_as_the_table_says() {
    let seed = number("FAULT_SEED").unwrap_or_else(|| fastrand::u64(..));
    report(&format!("the fault matrix has the seed {seed}"));
    let cells = draw(seed);
    let only = env::var("FAULT_CELLS").ok();
    let cells: Vec<Cell> =
        cells.into_iter().filter(|cell| is_chosen(&cell.name(), only.as_deref())).collect();
    let (count, mut unfinished) = (cells.len(), BTreeSet::new());
    unfinished.extend(cells.iter().map(Cell::name));
    let cells = Arc::new(Mutex::new(cells));
    let (done, results) = unbounded();
    let workers = number("FAULT_WORKERS").map_or(Ok(WORKERS), usize::try_from).unwrap();
    let places = Arc::new(FreePlaces::default());
    for _ in 0..workers {
        let (cells, places, done) = (Arc::clone(&cells), Arc::clone(&places), done.clone());
        let work = move || work(&cells, &places, &done);
        thread::Builder::new().name("cell".to_owned()).spawn(work).unwrap();
    }
    let writes = only.is_none() && env::var_os("WRITE_FAULTS").is_some();
    let (page, mut table, mut failures) = (Page::read(), Table::default(), Vec::new());
    for _ in 0..count {
        let Ok((cell, outcome)) = results.recv_timeout(STUCK) else {
            panic!("seed {seed}: stuck are some of {unfinished:#?}");
        };
        let (name, known) = (cell.name(), page.word(&cell));
        unfinished.remove(&name);
        failures.extend(outcome.failures.iter().map(|failure| format!("{name}: {failure}")));
        let may_differ = writes
            || outcome.was_out_of_time()
            || (cell.may_end(&outcome.word) && cell.may_end(known));
        if outcome.word != known && !may_differ {
            failures.push(format!("{name}: it is {:?}, and the page says {known:?}", outcome.word));
        }
        table.enter(&cell, if writes { outcome.word } else { known.to_owned() });
    }
    if writes {
        table.write();
    } else if only.is_none() && failures.is_empty() && !table.is_on_the_page() {
        failures.push("the page has another form; write it with WRITE_FAULTS=1".to_owned());
    }
    assert!(
        failures.is_empty(),
        "seed {seed}: {} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Whether a cell's name contains one of the parts that were asked for.
fn is_chosen(name: &str, only: Option<&str>) -> bool {
    only.is_none_or(|only| only.split(',').any(|part| name.contains(part)))
}

/// All cells, in an order of their own.
fn draw(seed: u64) -> Vec<Cell> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cells = Vec::new();
    for row in operations::all() {
        for fault in Fault::of(row.kind) {
            for times in [Times::First, Times::Every] {
                let cut = Cut::ALL[random.usize(..Cut::ALL.len())];
                let is_patient = match times {
                    Times::First => fault.is_answered(row.kind),
                    Times::Every => fault.ends_the_call(),
                };
                let row = if is_patient { row.patient() } else { row };
                cells.push(Cell { row, fault, times, cut });
            }
        }
    }
    random.shuffle(&mut cells);
    cells
}

/// Plays cells until there are no more.
fn work(cells: &Mutex<Vec<Cell>>, places: &FreePlaces, done: &Sender<(Cell, Outcome)>) {
    loop {
        let next = cells.lock().pop();
        let Some(cell) = next else { return };
        let outcome = run_cell(&cell, places);
        // It fails when the test has given up.
        drop(done.send((cell, outcome)));
    }
}

fn run_cell(cell: &Cell, places: &FreePlaces) -> Outcome {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let place = places.take(cell.row.kind);
        let outcome = cell.run(&place);
        places.give_back(place);
        outcome
    }));
    // After a panic the state of the servers is unknown, so they are dropped.
    result.unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failures = vec![what.unwrap_or_default()];
        Outcome { word: "panic".to_owned(), stood_still: Duration::ZERO, failures }
    })
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[expect(clippy::print_stderr, reason = "a run that fails is repeated by its seed")]
fn report(text: &str) {
    eprintln!("{text}");
}
