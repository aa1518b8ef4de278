//! The report on renewals: what keeping locks costs, beside a floor, peers and Redisson.
//!
//! Each measurement is a process of its own, on a server of its own, so that memory and processor time are those of
//! one keeper and no other.

mod bars;
mod child;
mod contestant;
mod flat_out;
mod floor;
mod foreground;
mod held;
mod jump_clock;
mod keepers;
mod measure;
mod plots;
mod redisson;
mod report;
mod runs;
mod server_load;
mod signals;
mod sweeps;
mod table;

pub use report::{keep_one, watchdog_report};
pub use sweeps::Sweeps;
