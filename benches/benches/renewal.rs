//! Renewals flat out: all locks of a client are due at once. Beside it are the same scripts on a
//! plain socket.
//!
//! Criterion runs them one after the other. For the ratio use `watchdog_report`, which runs them in
//! turn.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use wheellock_benches::RenewalRounds;
use wheellock_fixture::Server;

fn renewal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("renewal");
    group.sample_size(10).warm_up_time(Duration::from_millis(500));
    for held in [1_u32, 100, 10_000] {
        let server = Server::start();
        let mut rounds = RenewalRounds::start(server.address(), usize::try_from(held).unwrap_or(1));
        group.throughput(Throughput::Elements(u64::from(held)));
        group.bench_function(BenchmarkId::new("wheellock", held), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| rounds.renew()).sum());
        });
        group.bench_function(BenchmarkId::new("bare socket", held), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| rounds.floor()).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, renewal);
criterion_main!(benches);
