//! Lock and unlock without contention: the same scripts and two PINGs on a plain socket, this
//! crate, and the peers.
//!
//! Criterion runs them one after the other. For the ratio use `lock_report`, which runs them in
//! turn.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use wheellock_benches::{lock_unlocks, slow_lock_unlocks};
use wheellock_fixture::Server;

fn lock_unlock(criterion: &mut Criterion) {
    let server = Server::start();
    let mut group = criterion.benchmark_group("lock_unlock");
    for mut contender in lock_unlocks(&server) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter(|| contender.sample());
        });
    }
    // Every lock of the slow peers costs a thread or two connections, and the port of a closed
    // connection is not free for a minute. So there are few samples.
    group.sample_size(10).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(200));
    for mut contender in slow_lock_unlocks(&server).into_iter().skip(1) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter(|| contender.sample());
        });
    }
    group.finish();
}

criterion_group!(benches, lock_unlock);
criterion_main!(benches);
