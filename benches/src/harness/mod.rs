//! What all benchmarks share: measuring in turn, measuring in processes of their own, tables,
//! targets and plots.
//!
//! There are two ways to measure. [`Contender`]s run in this process, a few milliseconds each in
//! turn ([`measure_in_turn`]). The subjects of a [`Report`](report::Report) run in a process each,
//! whose processor time and memory are its own.

mod contender;
mod interleaved;

pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod figures;
pub(crate) mod goals;
pub(crate) mod java;
pub(crate) mod limit;
pub(crate) mod machine;
pub(crate) mod measured;
pub(crate) mod plot;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod workload;

pub use clock::now;
pub use contender::Contender;
pub use interleaved::{ContenderSummary, measure_in_turn, table};
pub use machine::{describe_with_server, pin};
