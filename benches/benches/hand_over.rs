//! Hand-over of a lock to a waiter of another client: the raw chain, this crate, and a peer that
//! polls.
//!
//! Criterion runs them one after the other. For the ratio use `lock_report`, which runs them in
//! turn.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use wheellock_benches::{Contender, hand_overs, slow_hand_overs};
use wheellock_fixture::Server;

fn hand_over(criterion: &mut Criterion) {
    let server = Server::start();
    let mut group = criterion.benchmark_group("hand_over");
    // Before each hand-over is a pause, in which the threads fall asleep.
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    for mut contender in hand_overs(&server) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter_custom(|times| total(&mut contender, times));
        });
    }
    group.sample_size(10).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(1));
    for mut contender in slow_hand_overs(&server).into_iter().skip(1) {
        group.bench_function(contender.name(), |bencher| {
            bencher.iter_custom(|times| total(&mut contender, times));
        });
    }
    group.finish();
}

fn total(contender: &mut Contender, times: u64) -> Duration {
    (0..times).map(|_| contender.sample()).sum()
}

criterion_group!(benches, hand_over);
criterion_main!(benches);
