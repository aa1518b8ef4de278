//! The report on timers: floors, both timers of hashed-wheel, Netty's and other peers, under the same workloads.
//!
//! Each measurement is a process of its own, so that memory and processor time are those of one timer and no other.

mod closeness;
mod contestant;
mod crates;
mod heap;
mod measure;
mod netty;
mod own;
mod plots;
mod random;
mod record;
mod report;
mod runs;
mod subject;
mod table;
mod tokio_peers;
mod workloads;

pub use report::{measure_one, timer_report};
