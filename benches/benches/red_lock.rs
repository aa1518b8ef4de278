//! A red lock of five servers: a raw parallel fan-out of the same scripts, this crate, and this
//! crate while one server hangs.
//!
//! Criterion runs them one after the other. For the ratio use `lock_report red`, which runs them in
//! turn.

use criterion::{Criterion, criterion_group, criterion_main};
use wheellock_benches::{RedServers, red_locks};

fn red_lock(criterion: &mut Criterion) {
    let servers = RedServers::start();
    let mut group = criterion.benchmark_group("red_lock");
    for mut contender in red_locks(&servers) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter(|| contender.sample());
        });
    }
    group.finish();
}

criterion_group!(benches, red_lock);
criterion_main!(benches);
