//! Lock and unlock without a rival: two PINGs, two raw EVALSHA of the same scripts, this crate, and the peers.
//!
//! Criterion runs them one after the other. For the ratio run `lock_report`, which runs them in turn.

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
    // Every lock of the slow peers costs a thread or two connections, and a connection leaves its port behind for a
    // minute. So there are few of them.
    group.sample_size(10).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(200));
    for mut contender in slow_lock_unlocks(&server) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter(|| contender.sample());
        });
    }
    group.finish();
}

criterion_group!(benches, lock_unlock);
criterion_main!(benches);
